package linux

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Calls on kernel file systems (cgroupfs, procfs), where a file is a knob: one
// open, one read or write, one close. Names may have several components; they
// must not come from outside, because symlinks are followed.

// OpenAt opens name beneath dir. O_CLOEXEC is always added. The returned file is
// owned by the caller.
func OpenAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := openAt(dir, name, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), dir.Name()+"/"+name), nil
}

// ReadFileAt returns what one read of at most limit bytes gives from name
// beneath dir.
func ReadFileAt(dir *os.File, name string, limit int) (string, error) {
	fd, err := openAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, limit)
	n, err := retryFd(func() (int, error) { return unix.Read(fd, buf) })
	if err != nil {
		return "", &os.PathError{Op: "read", Path: dir.Name() + "/" + name, Err: err}
	}
	return string(buf[:n]), nil
}

// WriteFileAt writes value to name beneath dir in one write.
func WriteFileAt(dir *os.File, name, value string) error {
	fd, err := openAt(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = Retry(func() error {
		_, err := unix.Write(fd, []byte(value))
		return err
	})
	if err != nil {
		return &os.PathError{Op: "writing " + value + " to", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}

// RewriteAt gives the file name beneath dir a new content in place: its inode stays, and a
// reader never finds it empty.
func RewriteAt(dir *os.File, name string, content []byte) error {
	f, err := OpenAt(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(content)))
}

// RmdirAt removes the empty directory name beneath dir.
func RmdirAt(dir *os.File, name string) error {
	err := Retry(func() error { return unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR) })
	runtime.KeepAlive(dir)
	if err != nil {
		return &os.PathError{Op: "rmdir", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}

func openAt(dir *os.File, name string, flags int) (int, error) {
	fd, err := retryFd(func() (int, error) {
		return unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC, 0)
	})
	runtime.KeepAlive(dir)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: dir.Name() + "/" + name, Err: err}
	}
	return fd, nil
}
