package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/boxd/boxd/internal/diskroom"
)

// Reserve is how many bytes of disk the current file has behind its end. Only entries
// with Ends may use them, so that on a full disk things can be ended, which makes room. A
// file system without fallocate(2), such as NFS before version 4.2, has no reserve.
const Reserve = 1 << 20

// reserveLocked makes sure that behind n more bytes there is still the reserve.
func (l *Log) reserveLocked(n int64) error {
	f, ok := l.file.(*os.File)
	if !ok {
		return nil
	}
	err := l.disk.Keep(f, l.size+n+Reserve)
	if errors.Is(err, syscall.EINVAL) { // of a file system that knows the call and not the mode
		l.disk.GiveUp()
		return nil
	}
	return err
}

// advise names the directory where space is missing, if it is that.
func (l *Log) advise(err error) error {
	if diskroom.IsFull(err) {
		return fmt.Errorf("%w: free space in %s", err, filepath.Dir(l.path))
	}
	return err
}
