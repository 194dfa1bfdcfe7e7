package bench

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/images/install"
)

const (
	imageBytes   = 120 << 20 // of the image that is imported
	cachedBytes  = 32 << 20  // of the file that many boxes read
	sharingBoxes = 100
	diskBytes    = 8 << 30 // of the file system that the images are on
)

// imageBench is a store of images on a disk, with what the rows need.
type imageBench struct {
	*bench
	dir    string // on a disk
	engine *native.Engine
	store  *images.Store
	made   int
	one    []string // the layer with the programs of the rows
}

// imageRows measures boxes of images, and how images come to the disk.
func (b *bench) imageRows(ctx context.Context) {
	if err := b.withImages(ctx, func(i *imageBench) error {
		return errors.Join(i.boxes(ctx), i.imports(ctx), i.sharing(ctx))
	}); err != nil {
		b.fail(b.current, err)
	}
}

func (b *bench) withImages(ctx context.Context, measure func(*imageBench) error) (err error) {
	i := &imageBench{bench: b}
	top, err := os.MkdirTemp("/var/tmp", "boxd-bench-") // /tmp may be in memory
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(top)) }()
	if i.dir, err = newDisk(ctx, top); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, exec.Command("umount", i.dir).Run()) }()
	i.engine, err = native.Start(ctx, native.Options{
		InitPath: b.init, StateDir: filepath.Join(b.scratch, "images"), DataDir: filepath.Join(i.dir, "data"),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.engine.Close()) }()
	i.store, err = images.Open(filepath.Join(i.dir, "store"), images.Options{
		Unpacker: install.New(install.Options{Create: i.engine.Create, Layers: i.engine, AllowDegraded: b.degraded}), Layers: i.engine,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.store.Close()) }()
	return measure(i)
}

// newDisk mounts a new ext4 below dir. On one in use, ext4 walks around the inodes that were deleted in the last minutes
// (recently_deleted, fs/ext4/ialloc.c): tar(1) then takes 0.7 to 4 s for the same archive, mostly in that function.
func newDisk(ctx context.Context, dir string) (string, error) {
	image, at := filepath.Join(dir, "disk.img"), filepath.Join(dir, "disk")
	err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, diskBytes), os.Mkdir(at, 0o755))
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", image}, {"mount", "-o", "loop", image, at}} {
		if err != nil {
			break
		}
		var out []byte
		if out, err = exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%s: %w: %.300s", strings.Join(args, " "), err, out)
		}
	}
	return at, err
}

// tar runs tar(1) for an archive in i.dir.
func (i *imageBench) tar(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "tar", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("tar %s: %w: %.300s", strings.Join(args, " "), err, out)
	}
	return nil
}

// add imports an archive of a root file system.
func (i *imageBench) add(ctx context.Context, tenant, archive string) (images.Image, error) {
	i.made++
	return i.store.Import(ctx, archive, images.Request{Reference: fmt.Sprintf("bench.example/%d:1", i.made), Tenant: tenant})
}

// layers imports an image with the programs of the rows, and n-1 layers with a file each on top.
func (i *imageBench) layers(ctx context.Context, n int) ([]string, error) {
	var all []string
	for k := range n {
		archive := filepath.Join(i.dir, fmt.Sprintf("layer%d.tar", k))
		var err error
		if k == 0 {
			var needed []string
			if needed, err = programs(ctx, command, "/bin/cat"); err == nil {
				if err = os.WriteFile(filepath.Join(i.dir, "large"), make([]byte, cachedBytes), 0o644); err == nil {
					err = i.tar(ctx, append([]string{"-chf", archive, "-C", i.dir, "large", "-C", "/"}, needed...)...)
				}
			}
		} else {
			name := fmt.Sprintf("file%d", k)
			if err = os.WriteFile(filepath.Join(i.dir, name), []byte(name), 0o644); err == nil {
				err = i.tar(ctx, "-cf", archive, "-C", i.dir, name)
			}
		}
		if err != nil {
			return nil, err
		}
		img, err := i.add(ctx, images.Shared, archive)
		if err != nil {
			return nil, err
		}
		all = append(all, img.Layers...)
	}
	return all, nil
}

// programs lists programs of the host and the libraries that they need, relative to the root.
func programs(ctx context.Context, paths ...string) (files []string, err error) {
	for _, path := range paths {
		files = append(files, path[1:])
		out, err := exec.CommandContext(ctx, "ldd", path).Output()
		if err != nil {
			return nil, fmt.Errorf("ldd %s: %w", path, err)
		}
		for word := range strings.FieldsSeq(string(out)) {
			if strings.HasPrefix(word, "/") {
				files = append(files, word[1:])
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// boxes compares boxes of images of 1 and 10 layers with those of the image host.
func (i *imageBench) boxes(ctx context.Context) error {
	ten, err := i.layers(ctx, 10)
	if err != nil {
		return err
	}
	i.one = ten[:1]
	cycle := func(layers []string) sample {
		return func() (time.Duration, error) {
			begin := time.Now()
			box, err := i.engine.Create(ctx, engine.Spec{Layers: layers, AllowDegraded: i.degraded})
			if err != nil {
				return 0, err
			}
			err = execTrue(ctx, box)
			exit := time.Since(begin)
			return exit, errors.Join(err, box.Remove(ctx))
		}
	}
	s, err := i.alternate(max(i.n/4, 5), timed(bare), cycle(nil), cycle(i.one), cycle(ten))
	if err != nil {
		return err
	}
	i.times("images.create.host", "create a box of image host, to the first exit", s[1], s[0], "", goal{})
	for k, n := range []int{1, 10} {
		more := s[k+2].p50() - s[1].p50()
		i.times(fmt.Sprintf("images.create.%d", n), fmt.Sprintf("create a box of %d layers, to the first exit", n), s[k+2], s[0], "", goal{"≤ host + 1 ms", more <= time.Millisecond})
	}
	return nil
}

// imports compares the import of an image with tar(1), and counts what a second tenant costs. Nothing is deleted between
// the samples: what deletes would share the disk with them.
func (i *imageBench) imports(ctx context.Context) error {
	base, err := i.python(ctx)
	if err != nil {
		return err
	}
	extract := func(sync bool) sample {
		return func() (time.Duration, error) {
			dir, err := os.MkdirTemp(i.dir, "tar-")
			if err != nil {
				return 0, err
			}
			begin := time.Now()
			err = i.tar(ctx, "-xzf", base, "-C", dir)
			if err == nil && sync {
				err = exec.CommandContext(ctx, "sync", "-f", dir).Run()
			}
			return time.Since(begin), err
		}
	}
	add := func() (time.Duration, error) {
		archive, err := i.another(base)
		if err != nil {
			return 0, err
		}
		begin := time.Now()
		_, err = i.add(ctx, images.Shared, archive)
		return time.Since(begin), err
	}
	s, err := i.alternate(max(i.n/20, 3), extract(false), extract(true), add)
	if err != nil {
		return err
	}
	i.times("images.tar", "tar -xzf of an image of 120 MB", s[0], s[0], "tar -xzf", goal{})
	i.times("images.tar-sync", "tar -xzf of it, and sync", s[1], s[0], "tar -xzf", goal{})
	i.times("images.import", "import it", s[2], s[0], "tar -xzf", goal{"≤ 2 × tar", ratio(s[2], s[0]) <= 2})

	if _, err := i.add(ctx, "first", base); err != nil {
		return err
	}
	before, err := diskUse(filepath.Join(i.dir, "data"))
	if err != nil {
		return err
	}
	if _, err := i.add(ctx, "second", base); err != nil {
		return err
	}
	after, err := diskUse(filepath.Join(i.dir, "data"))
	i.value("images.disk", "disk that a second tenant of the image costs", report.Bytes, float64(after-before), 0, "", goal{"0", after == before})
	return err
}

// another copies an archive and adds a small file of its own, so that the store does not know its layer.
func (i *imageBench) another(base string) (archive string, err error) {
	content := []byte(strconv.Itoa(i.made))
	archive = fmt.Sprintf("%s-%s", base, content)
	out, err := os.Create(archive)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	member := gzip.NewWriter(out)
	files := tar.NewWriter(member)
	err = files.WriteHeader(&tar.Header{Name: "number", Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = files.Write(content)
	}
	// Flush, not Close: the archive continues in the next member.
	if err = errors.Join(err, files.Flush(), member.Close()); err != nil {
		return "", err
	}
	in, err := os.Open(base)
	if err != nil {
		return "", err
	}
	defer in.Close()
	_, err = io.Copy(out, in)
	return archive, errors.Join(err, out.Sync())
}

// python makes a compressed archive of a root file system with the host's Python and other text and programs, 120 MB
// altogether.
func (i *imageBench) python(ctx context.Context) (archive string, err error) {
	archive = filepath.Join(i.dir, "python.tar.gz")
	var files []string
	var size int64
	trees, err := filepath.Glob("/usr/lib/python3*")
	for _, top := range append(trees, "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/share/perl", "/usr/include", "/usr/bin") {
		err = errors.Join(err, filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
			if err != nil || size > imageBytes {
				return nil // of what is missing there is no need
			}
			if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
				files = append(files, path[1:])
				size += info.Size()
			}
			return nil
		}))
	}
	list := filepath.Join(i.dir, "list")
	return archive, errors.Join(err, os.WriteFile(list, []byte(strings.Join(files, "\n")), 0o600), i.tar(ctx, "-czf", archive, "-C", "/", "-T", list))
}

// diskUse is what the files below dir take, in bytes.
func diskUse(dir string) (n int64, err error) {
	out, err := exec.Command("du", "-s", "--block-size=1", dir).Output()
	if err == nil {
		_, err = fmt.Sscan(string(out), &n)
	}
	return n, err
}

// sharing measures the page cache of many boxes that read one file of their image.
func (i *imageBench) sharing(ctx context.Context) (err error) {
	var boxes []engine.Box
	defer func() { removeAll(ctx, boxes) }()
	read := func() error {
		box, err := i.engine.Create(ctx, engine.Spec{Layers: i.one, AllowDegraded: i.degraded})
		if err != nil {
			return err
		}
		boxes = append(boxes, box)
		return exitedZero(engine.Run(ctx, box, engine.Command{Args: []string{"/bin/cat", "/large"}}))
	}
	if err := read(); err != nil {
		return err
	}
	first, err := pageCache()
	for err == nil && len(boxes) < sharingBoxes {
		err = read()
	}
	if err != nil {
		return err
	}
	all, err := pageCache()
	i.value("images.cache", fmt.Sprintf("page cache of %d boxes more that read %d MiB of one image", sharingBoxes-1, cachedBytes>>20), report.Bytes, float64(all-first), 0, "",
		goal{fmt.Sprintf("≤ %d MiB", cachedBytes>>20), all-first <= cachedBytes})
	return err
}

// pageCache is the size of the page cache in bytes, without files in memory.
func pageCache() (int64, error) {
	cached, err := sumFields("/proc/meminfo", "Cached")
	if err != nil {
		return 0, err
	}
	shared, err := sumFields("/proc/meminfo", "Shmem")
	return cached - shared, err
}
