package files

import (
	"io"
	"os"
	"path"
	"strings"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// openPath returns an O_PATH descriptor of the file that p leads to. It does not open the
// file itself: a FIFO does not wait for its other end, and a device does not notice.
func openPath(p string, flags int) (*os.File, error) { return open(p, unix.O_PATH|flags) }

func open(p string, flags int) (*os.File, error) {
	var fd int
	err := linux.Retry(func() (err error) {
		fd, err = unix.Open(p, unix.O_CLOEXEC|flags, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), p), nil
}

// reopen opens the regular file behind an O_PATH descriptor. Reading some regular files of
// /proc waits for news; with O_NONBLOCK it returns an error instead.
func reopen(f *os.File, flags int) (*os.File, unix.Stat_t, error) {
	st, err := linux.Fstat(f)
	if err != nil {
		return nil, st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, st, typeError{st.Mode}
	}
	opened, err := linux.Reopen(f, flags|unix.O_NONBLOCK|unix.O_NOCTTY)
	return opened, st, err
}

// read writes a part of a regular file to stdout.
func (o *operation) read() (proto.Reply, error) {
	offset, err := o.number(0, 10)
	if err != nil {
		return proto.Reply{}, err
	}
	limit, err := o.number(1, 10)
	if err != nil {
		return proto.Reply{}, err
	}
	found, err := openPath(o.path, 0)
	if err != nil {
		return proto.Reply{}, err
	}
	defer found.Close()
	f, st, err := reopen(found, unix.O_RDONLY)
	if err != nil {
		return proto.Reply{}, err
	}
	defer f.Close()
	if _, err := io.CopyBuffer(onlyWriter{o.out}, onlyReader{io.NewSectionReader(f, offset, limit)}, make([]byte, 256<<10)); err != nil {
		return proto.Reply{}, err
	}
	return proto.Reply{Info: info(st)}, nil
}

// onlyReader and onlyWriter make io.CopyBuffer use its buffer.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// stat describes the file that the path leads to, or a dangling symlink.
func (o *operation) stat() (proto.Reply, error) {
	link, err := openPath(o.path, unix.O_NOFOLLOW)
	if err != nil {
		return proto.Reply{}, err
	}
	defer link.Close()
	st, err := linux.Fstat(link)
	if err != nil {
		return proto.Reply{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return proto.Reply{Info: info(st)}, nil
	}
	// An O_PATH descriptor of the symlink itself is read with an empty name.
	target, err := linux.ReadlinkAt(link, "")
	if err != nil {
		return proto.Reply{}, err
	}
	if f, err := openPath(o.path, 0); err == nil {
		defer f.Close()
		if st, err = linux.Fstat(f); err != nil {
			return proto.Reply{}, err
		}
	}
	i := info(st)
	i.Target = []byte(target)
	return proto.Reply{Info: i}, nil
}

func info(st unix.Stat_t) *proto.Info {
	return &proto.Info{
		Size: st.Size, Mode: st.Mode, UID: st.Uid, GID: st.Gid,
		Sec: int64(st.Mtim.Sec), Nsec: int64(st.Mtim.Nsec),
	}
}

// split returns the directory and the last name of a path. The path may end in slashes. A
// path without a last name, such as "..", is refused.
func split(p string) (dir, name string, err error) {
	dir, name = path.Split(strings.TrimRight(p, "/"))
	if name == "" || name == "." || name == ".." {
		return "", "", unix.EINVAL
	}
	if dir == "" {
		dir = "."
	}
	return dir, name, nil
}

// openParent is split that opens the directory.
func openParent(p string) (*os.File, string, error) {
	dir, name, err := split(p)
	if err != nil {
		return nil, "", err
	}
	f, err := openPath(dir, unix.O_DIRECTORY)
	return f, name, err
}
