package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// Statx returns the fields of mask (STATX_*) for an open descriptor (O_PATH
// included). Mask in the result says which of them the kernel supports.
func Statx(f *os.File, mask int) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := Retry(func() error {
		return unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, mask, &st)
	})
	return st, pathError("statx", f, "", err)
}

// StatxCached returns the fields of mask for the file at path, following symlinks. It does not
// contact the server of a network file system, so the result may be out of date.
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
