package daemon

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// lockName is the file in the state directory that its daemon holds a lock on.
const lockName = "daemon.lock"

// lockState makes this process the only daemon of the state directory, for as long
// as the returned file is open. The file stays when the daemon ends: to remove it
// would let two daemons hold locks on two files of one name.
func lockState(dir string, a account) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	var f *os.File
	err := asUser(a, func() (err error) {
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("locking the state directory: %w", err)
	}
	err = linux.Retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		defer f.Close()
		return nil, fmt.Errorf("state directory %q is in use by the boxd with pid %s: stop that one first, or name another with --state-dir", dir, holder(f))
	}
	if err == nil {
		err = writeHolder(f)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking the state directory: %w", err)
	}
	return f, nil
}

// writeHolder leaves our pid for whoever is refused.
func writeHolder(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := fmt.Fprintf(f, "%d\n", os.Getpid())
	return err
}

// holder reads what writeHolder wrote.
func holder(f *os.File) string {
	text, err := io.ReadAll(io.LimitReader(f, 32))
	pid := strings.TrimSpace(string(text))
	if err != nil || pid == "" {
		return "unknown"
	}
	return pid
}
