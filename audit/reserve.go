package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/boxd/boxd/internal/diskroom"
)

// Reserve is how many bytes of disk the current file has beyond its end. Only entries with
// Ends may use them, so that things can still be ended on a full disk, which makes room. A
// file system without fallocate(2), such as NFS before version 4.2, has no reserve.
const Reserve = 1 << 20

// reserveLocked makes sure that n more bytes leave the reserve intact.
func (l *Log) reserveLocked(n int64) error {
	f, ok := l.file.(*os.File)
	if !ok {
		return nil
	}
	err := l.disk.Keep(f, l.size+n+Reserve)
	if errors.Is(err, syscall.EINVAL) { // the file system knows the call but not its mode
		l.disk.GiveUp()
		return nil
	}
	return err
}

// advise adds the directory that lacks space to err, if a full disk is the reason.
func (l *Log) advise(err error) error {
	if diskroom.IsFull(err) {
		return fmt.Errorf("%w: free space in %s", err, filepath.Dir(l.path))
	}
	return err
}
