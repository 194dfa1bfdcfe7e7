package linux

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Calls that make or look at one name beneath a directory descriptor. None of
// them follows a symlink in the last component; dir may be an O_PATH descriptor.

// SymlinkAt creates the symlink name beneath dir.
func SymlinkAt(target string, dir *os.File, name string) error {
	err := Retry(func() error { return unix.Symlinkat(target, int(dir.Fd()), name) })
	return pathError("symlinkat", dir, name, err)
}

// ReadlinkAt returns what the symlink name beneath dir points to. A name that is
// no symlink gives EINVAL.
func ReadlinkAt(dir *os.File, name string) (string, error) {
	var buf [unix.PathMax]byte
	var n int
	err := Retry(func() (err error) {
		n, err = unix.Readlinkat(int(dir.Fd()), name, buf[:])
		return err
	})
	if err != nil {
		return "", pathError("readlinkat", dir, name, err)
	}
	return string(buf[:n]), nil
}

// RenameAt moves name of dir to another directory, over a file that has that name there.
// Both names must be single components; symlinks are moved, not followed.
func RenameAt(dir *os.File, name string, to *os.File, newName string) error {
	err := Retry(func() error { return unix.Renameat(int(dir.Fd()), name, int(to.Fd()), newName) })
	runtime.KeepAlive(to)
	return pathError("renameat", dir, name, err)
}

// MknodAt creates a node beneath dir; the umask applies to mode.
func MknodAt(dir *os.File, name string, mode uint32, dev uint64) error {
	err := Retry(func() error { return unix.Mknodat(int(dir.Fd()), name, mode, int(dev)) })
	return pathError("mknodat", dir, name, err)
}

// ChmodAt changes the mode of name beneath dir, which must not be a symlink.
func ChmodAt(dir *os.File, name string, mode uint32) error {
	err := Retry(func() error { return unix.Fchmodat(int(dir.Fd()), name, mode, 0) })
	return pathError("fchmodat", dir, name, err)
}

// StatAt returns the status of name beneath dir without following a symlink.
func StatAt(dir *os.File, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := Retry(func() error {
		return unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	return st, pathError("fstatat", dir, name, err)
}

// CreateAt creates the regular file name beneath dir and opens it for writing;
// it must not exist. The umask applies to mode. The file is owned by the caller.
func CreateAt(dir *os.File, name string, mode uint32) (*os.File, error) {
	const flags = unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_WRONLY | unix.O_CLOEXEC
	fd, err := retryFd(func() (int, error) { return unix.Openat(int(dir.Fd()), name, flags, mode) })
	if err != nil {
		return nil, pathError("create", dir, name, err)
	}
	return os.NewFile(uintptr(fd), dir.Name()+"/"+name), nil
}

// Fstatfs returns the usage of the file system that f is on (O_PATH included).
func Fstatfs(f *os.File) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := Retry(func() error { return unix.Fstatfs(int(f.Fd()), &st) })
	return st, pathError("fstatfs", f, "", err)
}

// pathError names what failed beneath dir, and keeps dir alive until then.
func pathError(op string, dir *os.File, name string, err error) error {
	runtime.KeepAlive(dir)
	if err == nil {
		return nil
	}
	path := dir.Name()
	if name != "" {
		path += "/" + name
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}
