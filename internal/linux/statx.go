package linux

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Statx returns the fields of mask (STATX_*) for an open descriptor (O_PATH
// included). Which of them the kernel knows is in the Mask of the result.
func Statx(f *os.File, mask int) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := Retry(func() error {
		return unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, mask, &st)
	})
	runtime.KeepAlive(f)
	if err != nil {
		return st, &os.PathError{Op: "statx", Path: f.Name(), Err: err}
	}
	return st, nil
}

// MountFlags returns the ST_* flags in force for an open descriptor: those of
// its mount and of its file system together (statfs(2)).
func MountFlags(f *os.File) (int64, error) {
	var st unix.Statfs_t
	err := Retry(func() error { return unix.Fstatfs(int(f.Fd()), &st) })
	runtime.KeepAlive(f)
	if err != nil {
		return 0, &os.PathError{Op: "fstatfs", Path: f.Name(), Err: err}
	}
	return int64(st.Flags), nil
}

// StatxCached returns the fields of mask of the file at path, following symlinks. It asks no server:
// what it returns of a network file system may be out of date.
func StatxCached(path string, mask int) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := Retry(func() error {
		return unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, mask, &st)
	})
	if err != nil {
		return st, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return st, nil
}
