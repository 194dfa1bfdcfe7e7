package session

import (
	"errors"
	"math"
	"os"
	"sync"
	"syscall"

	"go.etcd.io/bbolt"
)

// reserve is how many bytes of disk the database has behind its last page. What is begun
// asks for room first, which leaves them; all other changes may use them: on a full disk
// sessions and processes can be ended, which makes room. A file system without
// fallocate(2) has no reserve, and in one that writes each block to a new place, such as
// btrfs, it promises less.
const reserve = 1 << 20

// room keeps the reserve.
type room struct {
	file *os.File // lent by the database

	mu        sync.Mutex
	allocated int64 // how far there is disk for the file
}

// check fails if something new would take from the reserve.
func (r *room) check(db *bbolt.DB) error {
	var used int64
	err := db.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil })
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil || used+reserve <= r.allocated {
		return nil
	}
	for _, to := range [...]int64{used + reserve + 64<<10, used + reserve} { // seldom, if there is more
		err = preallocate(r.file, to)
		switch {
		case err == nil:
			r.allocated = to
			return nil
		case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
			r.allocated = math.MaxInt64
			return nil
		case !isFull(err):
			return err
		}
	}
	return err
}

// preallocate makes sure that there is disk for the first n bytes of f, also behind its end.
func preallocate(f *os.File, n int64) error {
	const keepSize = 1 // FALLOC_FL_KEEP_SIZE
	err := error(syscall.EINTR)
	for err == syscall.EINTR {
		err = syscall.Fallocate(int(f.Fd()), keepSize, 0, n)
	}
	return os.NewSyscallError("fallocate", err)
}

// isFull reports whether there is no space for what err is about.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
