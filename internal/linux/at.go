package linux

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Calls that create or inspect one name beneath a directory descriptor. None of
// them follows a symlink in the last component; dir may be an O_PATH descriptor.

// SymlinkAt creates the symlink name beneath dir.
func SymlinkAt(target string, dir *os.File, name string) error {
	err := Retry(func() error { return unix.Symlinkat(target, int(dir.Fd()), name) })
	return pathError("symlinkat", dir, name, err)
}

// ReadlinkAt returns the target of the symlink name beneath dir. It fails with
// EINVAL if name is not a symlink.
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

// RenameAt moves name from dir to another directory and replaces any file of the new
// name. Both names must be single components; a symlink is moved, not followed.
func RenameAt(dir *os.File, name string, to *os.File, newName string) error {
	err := Retry(func() error { return unix.Renameat(int(dir.Fd()), name, int(to.Fd()), newName) })
	runtime.KeepAlive(to)
	return pathError("renameat", dir, name, err)
}

// RenameNew is RenameAt for a new name that must not exist (EEXIST).
func RenameNew(dir *os.File, name string, to *os.File, newName string) error {
	err := Retry(func() error {
		return unix.Renameat2(int(dir.Fd()), name, int(to.Fd()), newName, unix.RENAME_NOREPLACE)
	})
	runtime.KeepAlive(to)
	return pathError("renameat2", dir, name, err)
}

// UnlinkAt removes a file of any kind, but not a directory (EISDIR). It is not an error if
// name does not exist.
func UnlinkAt(dir *os.File, name string) error {
	err := Retry(func() error { return unix.Unlinkat(int(dir.Fd()), name, 0) })
	if err == unix.ENOENT {
		err = nil
	}
	return pathError("unlinkat", dir, name, err)
}

// OpenDirAt opens a directory in dir that is neither a symlink nor a mount point.
func OpenDirAt(dir *os.File, name string, flags int) (*os.File, error) {
	return Openat2(dir, name, unix.OpenHow{
		Flags:   uint64(flags | unix.O_DIRECTORY | unix.O_NOFOLLOW),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// ReadNames returns the names in dir, which may be an O_PATH descriptor, and may change at the same time.
func ReadNames(dir *os.File) ([]string, error) {
	f, err := Reopen(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// MkdirAt creates one directory beneath dir. name must be a single component; the
// umask applies to mode.
func MkdirAt(dir *os.File, name string, mode uint32) error {
	err := Retry(func() error { return unix.Mkdirat(int(dir.Fd()), name, mode) })
	return pathError("mkdirat", dir, name, err)
}

// RmdirAt removes the empty directory name beneath dir.
func RmdirAt(dir *os.File, name string) error {
	err := Retry(func() error { return unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR) })
	return pathError("rmdir", dir, name, err)
}

// MknodAt creates a device node beneath dir; the umask applies to mode.
func MknodAt(dir *os.File, name string, mode uint32, dev uint64) error {
	err := Retry(func() error { return unix.Mknodat(int(dir.Fd()), name, mode, int(dev)) })
	return pathError("mknodat", dir, name, err)
}

// ChmodAt changes the mode of name beneath dir, which must not be a symlink.
func ChmodAt(dir *os.File, name string, mode uint32) error {
	err := Retry(func() error { return unix.Fchmodat(int(dir.Fd()), name, mode, 0) })
	return pathError("fchmodat", dir, name, err)
}

// Fchownat changes the owner of name beneath dir, never following a symlink.
// An empty name means dir itself.
func Fchownat(dir *os.File, name string, uid, gid int) error {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	err := Retry(func() error { return unix.Fchownat(int(dir.Fd()), name, uid, gid, flags) })
	return pathError("fchownat", dir, name, err)
}

// StatAt returns the status of name beneath dir without following a symlink.
func StatAt(dir *os.File, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := Retry(func() error {
		return unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	return st, pathError("fstatat", dir, name, err)
}

// CreateAt creates the regular file name beneath dir, which must not exist, and opens
// it for writing. The umask applies to mode. The caller owns the file.
func CreateAt(dir *os.File, name string, mode uint32) (*os.File, error) {
	const flags = unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_WRONLY | unix.O_CLOEXEC
	fd, err := retryFd(func() (int, error) { return unix.Openat(int(dir.Fd()), name, flags, mode) })
	if err != nil {
		return nil, pathError("create", dir, name, err)
	}
	return os.NewFile(uintptr(fd), dir.Name()+"/"+name), nil
}

// pathError adds the operation and the path of name beneath dir, or of dir itself if name
// is empty, to err. It keeps dir alive until the system call has returned.
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
