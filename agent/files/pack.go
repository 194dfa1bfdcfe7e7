package files

import (
	"archive/tar"
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/internal/glob"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// maxPath is the longest path that the kernel takes, without the final NUL.
const maxPath = unix.PathMax - 1

// packer packs the content of a directory. Other processes may change the tree meanwhile, and
// put a symlink in place of a directory: even then only files that the user may read are packed.
type packer struct {
	root  *os.File
	set   glob.Set
	made  *proto.Made
	w     *tar.Writer // nil: everything is checked and counted, but not written
	left  int64       // bytes that the archive may still have
	files int

	truncated bool
	above     []directory // the directories on the way to the current one
}

// directory waits for its first entry that is packed, unless it was packed itself.
type directory struct {
	header *tar.Header
	packed bool
}

// pack writes a directory's content as a tar archive. It first looks at the whole tree, so
// that a file which cannot be read, or a tree that is too large, is reported before any output.
func (o *operation) pack() (proto.Reply, error) {
	var q proto.Pack
	if err := json.Unmarshal([]byte(o.args[0]), &q); err != nil {
		return proto.Reply{}, fmt.Errorf("argument %q: %w", o.args[0], unix.EINVAL)
	}
	set, err := glob.Parse(q.Globs)
	if err != nil {
		return proto.Reply{}, fmt.Errorf("%w: %w", err, unix.EINVAL)
	}
	root, err := open(o.path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return proto.Reply{}, err
	}
	defer root.Close()
	if q.Made == nil {
		check := packer{root: root, set: set, left: q.MaxBytes}
		if err := check.walk("", set.Begin()); err != nil {
			return proto.Reply{}, err
		}
	}
	out := bufio.NewWriterSize(o.out, 256<<10)
	p := packer{root: root, set: set, left: q.MaxBytes, made: q.Made, w: tar.NewWriter(out)}
	if err := p.walk("", set.Begin()); err != nil {
		return proto.Reply{}, err
	}
	return proto.Reply{Truncated: p.truncated}, cmp.Or(p.w.Close(), out.Flush())
}

// walk packs the directory at p, whose state is st.
func (p *packer) walk(dir string, st glob.State) error {
	f, err := linux.OpenAt(p.root, cmp.Or(dir, "."), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return p.unreadable("opening", dir, err)
	}
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return p.unreadable("reading", dir, err)
	}
	slices.Sort(names)
	for _, name := range names {
		next := st.Enter(name)
		if !next.Possible() {
			continue
		}
		if dir != "" {
			name = dir + "/" + name
		}
		if len(name) > maxPath {
			return &stepError{"packing", shorten(name), unix.ENAMETOOLONG}
		}
		if err := p.entry(name, next); err != nil {
			return err
		}
		if p.truncated {
			return nil
		}
	}
	return nil
}

func (p *packer) entry(name string, st glob.State) error {
	found, err := linux.StatAt(p.root, name)
	if errors.Is(err, unix.ENOENT) {
		return nil // removed meanwhile
	}
	if err != nil {
		return p.unreadable("describing", name, err)
	}
	kind := found.Mode & unix.S_IFMT
	h := &tar.Header{Name: name, Mode: int64(found.Mode & 0o777), ModTime: time.Unix(int64(found.Mtim.Sec), 0)}
	switch {
	case kind == unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		p.above = append(p.above, directory{header: h})
		if st.Matched() && p.made == nil {
			err = p.packAbove()
		}
		if err == nil {
			err = p.walk(name, st)
		}
		p.above = p.above[:len(p.above)-1]
		return err
	case !st.Matched():
		return nil
	case kind == unix.S_IFREG:
		if p.made != nil && !p.isMade(&found) {
			return nil
		}
		h.Typeflag, h.Size = tar.TypeReg, found.Size
		return p.file(h)
	case p.made != nil:
		return nil
	case kind == unix.S_IFLNK:
		if h.Linkname, err = linux.ReadlinkAt(p.root, name); err != nil {
			return p.unreadable("reading symlink", name, err)
		}
		h.Typeflag = tar.TypeSymlink
		return p.header(h)
	}
	text := map[uint32]string{unix.S_IFIFO: "fifo", unix.S_IFSOCK: "socket"}[kind]
	return p.header(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{proto.LeftOut: cmp.Or(text, "device") + " " + name}})
}

// isMade goes by the time at which the file's content, name or rights last changed, which
// programs cannot set.
func (p *packer) isMade(st *unix.Stat_t) bool {
	sec, nsec := int64(st.Ctim.Sec), int64(st.Ctim.Nsec)
	return sec > p.made.Sec || sec == p.made.Sec && nsec >= p.made.Nsec
}

// file packs a regular file.
func (p *packer) file(h *tar.Header) error {
	if p.made != nil && p.files == p.made.Files {
		p.truncated = true
		return nil
	}
	p.files++
	name := h.Name
	if p.w == nil {
		err := linux.Retry(func() error { return unix.Faccessat(int(p.root.Fd()), name, unix.R_OK, 0) })
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return p.unreadable("opening", name, err)
		}
		return p.charge(h)
	}
	f, err := linux.OpenAt(p.root, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err == nil {
		defer f.Close()
		var st unix.Stat_t
		if st, err = linux.Fstat(f); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil // replaced meanwhile
		}
		h.Size = st.Size
	}
	if err != nil || p.made != nil && size(h) > p.left {
		if p.made == nil {
			return p.unreadable("opening", name, err)
		}
		h.PAXRecords, h.Size = map[string]string{proto.OmittedSize: strconv.FormatInt(h.Size, 10)}, 0
		return p.header(h)
	}
	if err := p.header(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(onlyWriter{p.w}, onlyReader{io.LimitReader(f, h.Size)}, make([]byte, min(256<<10, h.Size+1)))
	if err != nil {
		return &stepError{"reading", shorten(name), err}
	}
	if n < h.Size {
		return &stepError{"packing a file that became shorter meanwhile:", shorten(name), unix.ESTALE}
	}
	return nil
}

// header packs an entry, after the directories above it.
func (p *packer) header(h *tar.Header) error {
	if err := p.packAbove(); err != nil {
		return err
	}
	return p.put(h)
}

func (p *packer) packAbove() error {
	for i := range p.above {
		if !p.above[i].packed {
			p.above[i].packed = true
			if err := p.put(p.above[i].header); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *packer) put(h *tar.Header) error {
	if err := p.charge(h); err != nil || p.w == nil {
		return err
	}
	return p.w.WriteHeader(h)
}

// charge counts what an entry adds to the archive.
func (p *packer) charge(h *tar.Header) error {
	if p.left -= size(h); p.left < 0 && p.made == nil {
		return unix.EFBIG
	}
	return nil
}

// size is what an entry adds to an archive, at least.
func size(h *tar.Header) int64 {
	const block = 512
	whole := func(n int64) int64 { return (n + block - 1) / block * block }
	n := block + int64(len(h.Name)+len(h.Linkname)) + whole(h.Size)
	if len(h.PAXRecords) > 0 { // in a file of their own
		records := int64(0)
		for key, value := range h.PAXRecords {
			records += int64(len("0 =\n") + len(key) + len(value))
		}
		if n += whole(records); h.Typeflag != tar.TypeXGlobalHeader {
			n += block
		}
	}
	return n
}

// unreadable returns the error of a step, or nil if files that cannot be read are skipped.
func (p *packer) unreadable(step, name string, err error) error {
	if p.made != nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &stepError{step, shorten(cmp.Or(name, ".")), err}
}
