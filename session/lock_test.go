package session

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestLockOfTheDead: a process that was killed while it started a child has the lock until the child runs its
// program. The next one waits for that, but not for a process that is alive.
func TestLockOfTheDead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, lockName)
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	held, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := held.WriteAt(fmt.Appendf(nil, "%-15d\n", os.Getpid()), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := LockState(dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("held by a process that is alive: %v", err)
	}
	if _, err := held.WriteAt(fmt.Appendf(nil, "%-15d\n", dead.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	locked := make(chan error)
	go func() {
		f, err := LockState(dir)
		if err == nil {
			f.Close()
		}
		locked <- err
	}()
	select {
	case err := <-locked:
		t.Fatalf("held by a child: %v", err)
	default:
	}
	held.Close()
	if err := <-locked; err != nil {
		t.Error(err)
	}
}
