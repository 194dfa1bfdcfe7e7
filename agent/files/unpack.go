package files

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/internal/glob"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// unpacker unpacks a tar archive into a directory. Neither a name nor a symlink, of the archive
// or in the tree, leads out of the directory.
type unpacker struct {
	root *os.Root
	tree proto.Tree
	buf  []byte

	dirName string // of dir
	dir     *os.File
}

// unpack makes the entries of a tar archive below a directory. Each file is replaced
// atomically; what was unpacked before an error stays.
func (o *operation) unpack() (proto.Reply, error) {
	var q proto.Unpack
	if err := json.Unmarshal([]byte(o.args[0]), &q); err != nil {
		return proto.Reply{}, fmt.Errorf("argument %q: %w", o.args[0], unix.EINVAL)
	}
	set, err := glob.Parse(q.Globs)
	if err != nil {
		return proto.Reply{}, fmt.Errorf("%w: %w", err, unix.EINVAL)
	}
	if q.Outside != "" {
		if err := checkOutside(o.path, q.Outside); err != nil {
			return proto.Reply{}, err
		}
	}
	if q.Parents {
		if err := makeAll(o.path, 0); err != nil {
			return proto.Reply{}, err
		}
	}
	if q.New != 0 {
		if err := makeDir(o.path, q.New); err != nil {
			return proto.Reply{}, err
		}
	}
	root, err := os.OpenRoot(o.path)
	if err != nil {
		return proto.Reply{}, err
	}
	u := &unpacker{root: root, buf: make([]byte, 256<<10)}
	defer u.close()
	content := &chunkReader{r: o.stdin, buf: make([]byte, proto.MaxChunk)}
	archive := tar.NewReader(content)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return proto.Reply{}, content.failure(err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if name == "" || h.Typeflag == tar.TypeXGlobalHeader || !set.Match(name) {
			continue
		}
		if h.Size < 0 || h.Size > q.MaxBytes-u.tree.Bytes {
			return proto.Reply{}, &stepError{"unpacking", shorten(name), unix.EFBIG}
		}
		if err := u.entry(name, h, archive); err != nil {
			if errors.Is(err, errContent) {
				return proto.Reply{}, content.failure(err)
			}
			if _, ok := errors.AsType[unix.Errno](err); !ok { // os.Root does not follow such a symlink
				return proto.Reply{}, &stepError{"unpacking through a symlink that leads out of the directory:", shorten(name), unix.EXDEV}
			}
			return proto.Reply{}, &stepError{"unpacking", shorten(name), err}
		}
	}
	// The archive may end before the content does, but the content has to be complete.
	if _, err := io.CopyBuffer(onlyWriter{io.Discard}, content, u.buf); err != nil {
		return proto.Reply{}, content.failure(err)
	}
	return proto.Reply{Tree: &u.tree}, nil
}

// checkOutside refuses p if it is the directory dir or below it, or would be once it is made.
func checkOutside(p, dir string) error {
	top, err := openPath(dir, unix.O_DIRECTORY)
	if err != nil {
		return &stepError{"opening", shorten(dir), err}
	}
	defer top.Close()
	not, err := linux.Fstat(top)
	if err != nil {
		return err
	}
	at, err := openPath(p, unix.O_DIRECTORY)
	for errors.Is(err, unix.ENOENT) && p != "." {
		above, _, e := split(p)
		if e != nil {
			return err
		}
		p = above
		at, err = openPath(p, unix.O_DIRECTORY)
	}
	if err != nil {
		return err
	}
	defer func() { at.Close() }()
	for last := (unix.Stat_t{}); ; {
		st, err := linux.Fstat(at)
		switch {
		case err != nil:
			return err
		case st.Dev == not.Dev && st.Ino == not.Ino:
			return proto.Inside
		case st.Dev == last.Dev && st.Ino == last.Ino:
			return nil // the root
		}
		up, err := linux.OpenAt(at, "..", unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		at.Close()
		at, last = up, st
	}
}

func (u *unpacker) close() {
	if u.dir != nil {
		u.dir.Close()
	}
	u.root.Close()
}

func (u *unpacker) entry(name string, h *tar.Header, content io.Reader) error {
	dirName, base := path.Split(name)
	dir, err := u.open(path.Clean(dirName))
	if err != nil {
		return err
	}
	mode := uint32(h.Mode) & 0o777
	switch h.Typeflag {
	case tar.TypeDir:
		u.tree.Directories++
		return u.makeDir(dir, base, name, mode)
	case tar.TypeSymlink:
		u.tree.Symlinks++
		return makeSymlink(h.Linkname, dir, base)
	case tar.TypeLink:
		u.tree.Files++
		return u.link(strings.TrimPrefix(path.Clean("/"+h.Linkname), "/"), dir, base)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		u.tree.Files++
		t := target{dir: dir, name: base}
		if ts, err := unix.TimeToTimespec(h.ModTime); err == nil {
			t.time = &ts
		}
		_, err := t.replace(func(f *os.File) error {
			n, err := io.CopyBuffer(onlyWriter{f}, contentReader{content}, u.buf)
			u.tree.Bytes += n
			return err
		}, mode)
		return err
	}
	u.tree.Skipped++
	return nil
}

// open returns the directory of that name, which it makes if it is missing. It stays open until
// another is opened: the entries of a directory follow one another.
func (u *unpacker) open(name string) (*os.File, error) {
	if u.dir != nil && u.dirName == name {
		return u.dir, nil
	}
	dir, err := u.openDir(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = u.root.MkdirAll(name, 0o755); err == nil {
			dir, err = u.openDir(name)
		}
	}
	if err != nil {
		return nil, err
	}
	if u.dir != nil {
		u.dir.Close()
	}
	u.dir, u.dirName = dir, name
	return dir, nil
}

func (u *unpacker) openDir(name string) (*os.File, error) {
	return u.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// makeDir makes a directory that its owner can write to. An existing one stays as it is.
func (u *unpacker) makeDir(dir *os.File, base, name string, mode uint32) error {
	err := linux.MkdirAt(dir, base, 0o700)
	if errors.Is(err, unix.EEXIST) {
		if info, err := u.root.Stat(name); err != nil || !info.IsDir() {
			return errors.Join(unix.EEXIST, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	// Whatever another process has put in its place meanwhile keeps its mode, unless it is a directory
	// that this user owns.
	made, err := linux.OpenAt(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer made.Close()
	return setMode(made, mode|0o700)
}

// link makes a hard link to a file of the tree, in place of a file or symlink.
func (u *unpacker) link(to string, dir *os.File, base string) error {
	above, name := path.Split(to)
	from, err := u.openDir(path.Clean(above))
	if err != nil {
		return err
	}
	defer from.Close()
	temporary := temporaryName()
	if err := linux.Retry(func() error { return unix.Linkat(int(from.Fd()), name, int(dir.Fd()), temporary, 0) }); err != nil {
		return err
	}
	err = linux.RenameAt(dir, temporary, dir, base)
	_ = unlink(dir, temporary) // after an error, or if both were the same file, which rename(2) leaves alone
	return err
}

// errContent marks an error of the archive, as opposed to one of the file system.
var errContent = errors.New("content")

type contentReader struct{ r io.Reader }

func (c contentReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%w: %w", errContent, err)
	}
	return n, err
}

// chunkReader reads the content of chunks. It ends with io.EOF only if the content is complete.
type chunkReader struct {
	r    io.Reader
	buf  []byte
	rest []byte
	err  error
}

func (c *chunkReader) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		c.rest, c.err = proto.ReadChunk(c.r, c.buf)
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// failure returns why the archive could not be read: because the content did not arrive, or
// because it is none.
func (c *chunkReader) failure(err error) error {
	if c.err != nil && c.err != io.EOF {
		return errors.Join(c.err, unix.ECANCELED)
	}
	return &stepError{proto.StepArchive, shorten(err.Error()), unix.EBADMSG}
}
