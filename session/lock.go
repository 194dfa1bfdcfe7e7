package session

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/boxd/boxd/internal/diskroom"
)

// LockState locks the lock file of a state directory, which names the holder, or fails with
// ErrLocked. The lock is released when the file is closed, at the latest with the process.
// The file is not removed, because then two processes could lock two files of one name.
func LockState(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		defer f.Close()
		return nil, fmt.Errorf("lock file %s: %w by %s: stop it first, or choose another state directory", path, ErrLocked, holder(f))
	}
	if err == nil {
		err = writeHolder(f)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	return f, nil
}

// writeHolder writes the holder's name to f. It overwrites the old content in place, which
// also works on a full disk, because the block stays allocated. A new file stays empty then.
func writeHolder(f *os.File) error {
	_, err := f.WriteAt(fmt.Appendf(nil, "%-15d\n", os.Getpid()), 0)
	if diskroom.IsFull(err) {
		return nil
	}
	return err
}

// holder names the process that has the lock file f.
func holder(f *os.File) string {
	b, _ := io.ReadAll(io.LimitReader(f, 32)) // an unreadable file says the same as an empty one
	pid := strings.TrimSpace(string(b))
	if _, err := strconv.Atoi(pid); err != nil {
		return "another process"
	}
	return "process " + pid
}
