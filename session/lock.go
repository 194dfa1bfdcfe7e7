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
	"time"

	"github.com/boxd/boxd/internal/diskroom"
)

// lockPatience bounds the wait for the lock of a process that is gone. A child has its parent's descriptors,
// and with them the lock, from fork to exec, also if the parent is killed meanwhile.
const lockPatience = 5 * time.Second

// LockState locks the lock file of a state directory, or fails with ErrLocked and names the
// process that holds it. Closing the file releases the lock, as does the end of the process.
// The file is never removed, because then two processes could lock two files of one name.
func LockState(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	for end := time.Now().Add(lockPatience); ; time.Sleep(5 * time.Millisecond) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
		holder, gone := "another process", false
		b, _ := io.ReadAll(io.NewSectionReader(f, 0, 32)) // an unreadable file says as little as an empty one
		if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			holder, gone = fmt.Sprintf("process %d", pid), errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
		}
		if !gone || time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("lock file %s: %w by %s: stop it first, or choose another state directory", path, ErrLocked, holder)
		}
	}
	if err == nil {
		// Overwriting the old content also works on a full disk, because its block stays
		// allocated. A new file stays empty then.
		if _, err = f.WriteAt(fmt.Appendf(nil, "%-15d\n", os.Getpid()), 0); diskroom.IsFull(err) {
			err = nil
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	return f, nil
}
