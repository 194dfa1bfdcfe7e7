package testutil

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openLock opens the file anew: a flock belongs to an open file description.
func openLock(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestLockSaysWhoHasIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, second := openLock(t, path), openLock(t, path)
	if !flock(first, &bytes.Buffer{}, 0) {
		t.Fatal("a free lock is not taken")
	}
	first.WriteString("cgroups.test (pid 42)\n")
	var report bytes.Buffer
	if flock(second, &report, time.Millisecond) {
		t.Error("a lock is taken twice")
	}
	for _, want := range []string{"waiting for another privileged test package, cgroups.test (pid 42)\n", "still held by cgroups.test (pid 42)"} {
		if !strings.Contains(report.String(), want) {
			t.Errorf("report %q, want %q in it", &report, want)
		}
	}
}

// lockBreaker frees the lock when a waiter reports that it waits.
type lockBreaker struct {
	bytes.Buffer
	held *os.File
}

func (b *lockBreaker) Write(p []byte) (int, error) {
	unix.Flock(int(b.held.Fd()), unix.LOCK_UN)
	return b.Buffer.Write(p)
}

func TestLockIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, second := openLock(t, path), openLock(t, path)
	report := &lockBreaker{held: first}
	if !flock(first, report, 0) || !flock(second, report, time.Minute) {
		t.Error("the lock is not taken")
	}
	if s := report.String(); strings.Count(s, "\n") != 2 || !strings.Contains(s, "which has not said its name") || !strings.Contains(s, ": waited ") {
		t.Errorf("report %q, want who is waited for, and how long it took", s)
	}
}
