package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// Calls for kernel file systems (cgroupfs, procfs), where a file is a knob: one
// open, one read or write, one close. Names may have several components. They
// must not come from outside, because symlinks are followed.

// OpenAt opens name beneath dir. O_CLOEXEC is always added. The caller owns the
// returned file.
func OpenAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := openAt(dir, name, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), dir.Name()+"/"+name), nil
}

// ReadFileAt returns the result of one read of at most 4096 bytes from name beneath dir. A
// value of the kernel fits into one page; only lists are longer.
func ReadFileAt(dir *os.File, name string) (string, error) {
	fd, err := openAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var buf [4096]byte
	n, err := retryFd(func() (int, error) { return unix.Read(fd, buf[:]) })
	return string(buf[:max(n, 0)]), pathError("read", dir, name, err)
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
		return pathError("writing "+value+" to", dir, name, err)
	}
	return nil
}

// RewriteAt replaces the content of the file name beneath dir in place: the inode stays the
// same, and readers never see an empty file.
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

func openAt(dir *os.File, name string, flags int) (int, error) {
	fd, err := retryFd(func() (int, error) {
		return unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC, 0)
	})
	return fd, pathError("open", dir, name, err)
}
