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
