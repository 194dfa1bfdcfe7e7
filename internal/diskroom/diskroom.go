// Package diskroom reserves disk space, beyond the end of a file or as a separate file, so
// that essential writes succeed on a full disk.
package diskroom

import (
	"errors"
	"math"
	"os"
	"syscall"

	"github.com/boxd/boxd/internal/linux"
)

// Room records up to which offset disk space is allocated for a file. The zero value means
// that nothing is known to be allocated. The owner must serialise calls.
type Room struct{ allocated int64 }

// slack is how much Keep allocates in advance, so that a slowly growing file rarely needs a
// system call.
const slack = 64 << 10

// Keep ensures that disk space is allocated for the first end bytes of f, even beyond the end
// of the file. [IsFull] is true of the error on a full disk. Where the file system does not
// support fallocate(2), Keep succeeds without any guarantee.
func (r *Room) Keep(f *os.File, end int64) error {
	if end <= r.allocated {
		return nil
	}
	var err error
	for _, to := range [...]int64{end + slack, end} {
		err = linux.Fallocate(f, linux.KeepSize, to)
		switch {
		case err == nil:
			r.allocated = to
			return nil
		case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
			r.GiveUp()
			return nil
		case !IsFull(err):
			return err
		}
	}
	return err
}

// GiveUp makes every later Keep succeed without any guarantee.
func (r *Room) GiveUp() { r.allocated = math.MaxInt64 }

// Forget tells r that nothing is allocated any more, for example because the file was
// truncated.
func (r *Room) Forget() { r.allocated = 0 }

// IsFull reports whether err says that a disk or a quota is full.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// KeepSpare makes the file at path occupy size bytes of disk, or less on a nearly full disk.
// [GiveSpare] frees them. Without fallocate(2) nothing is reserved.
func KeepSpare(path string, size int64) {
	const least = 16 << 10
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	for ; size >= least; size /= 2 {
		if err = linux.Fallocate(f, linux.KeepSize, size); !IsFull(err) {
			break
		}
	}
	if err != nil {
		os.Remove(path)
	}
}

// GiveSpare frees the disk space that [KeepSpare] has reserved.
func GiveSpare(path string) { os.Remove(path) }
