package audit

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
)

// Reserve is how many bytes of disk the current file has behind its end. Only entries
// with Ends may use them, so that on a full disk things can be ended, which makes room. A
// file system without fallocate(2), such as NFS before version 4.2, has no reserve.
const Reserve = 1 << 20

// fallocKeepSize is FALLOC_FL_KEEP_SIZE of fallocate(2): blocks behind the end of the file.
const fallocKeepSize = 1

// reserveLocked makes sure that behind n more bytes there is still the reserve.
func (l *Log) reserveLocked(n int64) error {
	f, ok := l.file.(*os.File)
	end := l.size + n + Reserve
	if !ok || end <= l.allocated {
		return nil
	}
	for _, to := range [...]int64{end + 64<<10, end} { // not for every entry, if there is more
		err := syscall.EINTR
		for err == syscall.EINTR {
			err, _ = syscall.Fallocate(int(f.Fd()), fallocKeepSize, 0, to).(syscall.Errno)
		}
		switch err {
		case 0:
			l.allocated = to
			return nil
		case syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EINVAL:
			l.allocated = math.MaxInt64
			return nil
		case syscall.ENOSPC, syscall.EDQUOT:
		default:
			return os.NewSyscallError("fallocate", err)
		}
	}
	return os.NewSyscallError("fallocate", syscall.ENOSPC)
}

// isFull reports whether there is no space for what err is about.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// advise names the directory where space is missing, if it is that.
func (l *Log) advise(err error) error {
	if isFull(err) {
		return fmt.Errorf("%w: free space in %s", err, filepath.Dir(l.path))
	}
	return err
}
