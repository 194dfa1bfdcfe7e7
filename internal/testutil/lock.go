package testutil

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile is held by the one privileged test package that runs on this machine.
const lockFile = "/run/boxd-test.lock"

// lockPatience bounds the wait for another package, so that one that hangs does
// not stop everybody.
const lockPatience = 2 * time.Minute

// lockMachine takes the lock. alone says that it is held; without it findings
// that are not of this process cannot be told from another package's boxes.
// Not root: nothing machine-wide can be made, so nothing is locked.
func lockMachine(report io.Writer) (alone bool, unlock func()) {
	if os.Geteuid() != 0 {
		return true, func() {}
	}
	f, err := os.OpenFile(lockFile, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		fmt.Fprintf(report, "locking the machine for tests: %v\n", err)
		return false, func() {}
	}
	if !flock(f, report) {
		f.Close()
		return false, func() {}
	}
	return true, func() { f.Close() }
}

// flock waits for the lock in slices: flock(2) has no timeout, and a thread
// that blocks in it for good could not be joined.
func flock(f *os.File, report io.Writer) bool {
	deadline := time.Now().Add(lockPatience)
	for waited := false; ; waited = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			fmt.Fprintf(report, "locking %q: %v\n", lockFile, err)
			return false
		case time.Now().After(deadline):
			fmt.Fprintf(report, "locking %q: still held by another test after %v, going on without it\n", lockFile, lockPatience)
			return false
		case !waited:
			fmt.Fprintf(report, "waiting for another privileged test package (lock %q)\n", lockFile)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
