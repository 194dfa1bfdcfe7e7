// Package diskroom keeps disk allocated, behind the end of a file or as a file of its own, so
// that there is room for what matters on a full disk.
package diskroom

import (
	"errors"
	"math"
	"os"
	"syscall"
)

// Room says how far there is disk for a file. The zero value knows of none. Its owner
// serialises the calls.
type Room struct{ allocated int64 }

// slack is how much more than asked for Keep allocates, so that a file that grows slowly
// needs a system call seldom.
const slack = 64 << 10

// Keep makes sure that there is disk for the first end bytes of f, also behind its end. A
// full disk is an error for which [IsFull] is true. Where the file system has no
// fallocate(2), Keep succeeds and promises nothing.
func (r *Room) Keep(f *os.File, end int64) error {
	if end <= r.allocated {
		return nil
	}
	var err error
	for _, to := range [...]int64{end + slack, end} {
		err = allocate(f, to)
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

// GiveUp makes every later Keep succeed without a promise.
func (r *Room) GiveUp() { r.allocated = math.MaxInt64 }

// Forget says that nothing is allocated any more, as after the file was truncated.
func (r *Room) Forget() { r.allocated = 0 }

func allocate(f *os.File, n int64) error {
	const keepSize = 1 // FALLOC_FL_KEEP_SIZE
	err := error(syscall.EINTR)
	for err == syscall.EINTR {
		err = syscall.Fallocate(int(f.Fd()), keepSize, 0, n)
	}
	return os.NewSyscallError("fallocate", err)
}

// IsFull reports whether err says that a disk or a quota is full.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// KeepSpare makes the file at path occupy size bytes of disk, or as much as a fuller disk
// has, which [GiveSpare] gives back. Without fallocate(2) nothing is kept.
func KeepSpare(path string, size int64) {
	const least = 16 << 10
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	for ; size >= least; size /= 2 {
		if err = allocate(f, size); !IsFull(err) {
			break
		}
	}
	if err != nil {
		os.Remove(path)
	}
}

// GiveSpare gives back what [KeepSpare] has kept.
func GiveSpare(path string) { os.Remove(path) }
