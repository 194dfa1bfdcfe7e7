package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// Preallocate makes sure that there is disk for the first n bytes of f, also behind its
// end, and leaves what is in it as it is. EOPNOTSUPP: the file system cannot do that.
func Preallocate(f *os.File, n int64) error {
	err := Retry(func() error { return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, n) })
	return pathError("fallocate", f, "", err)
}
