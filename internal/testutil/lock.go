package testutil

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile is locked by the one privileged test package that runs on this machine, and has its name.
const lockFile = "/run/boxd-test.lock"

// lockPatience bounds the wait for another package, so that a package that hangs does not stop the
// others.
const lockPatience = 2 * time.Minute

// lockMachine takes the lock. alone reports whether it has; without the lock, leaks outside of this
// process may be boxes of another package. Without root a package creates nothing machine-wide, so
// nothing is locked.
func lockMachine(report io.Writer) (alone bool, unlock func()) {
	if os.Geteuid() != 0 {
		return true, func() {}
	}
	f, err := os.OpenFile(lockFile, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		fmt.Fprintf(report, "locking the machine for tests: %v\n", err)
		return false, func() {}
	}
	// go test shows the output of a package only when it has ended.
	if tty, err := os.OpenFile("/dev/tty", os.O_WRONLY|unix.O_NOCTTY, 0); err == nil {
		defer tty.Close()
		report = io.MultiWriter(report, tty)
	}
	if !flock(f, report, lockPatience) {
		f.Close()
		return false, func() {}
	}
	if f.Truncate(0) == nil {
		f.WriteAt([]byte(myName()+"\n"), 0)
	}
	return true, func() { f.Close() }
}

// flock polls for the lock and reports which package it waits for. flock(2) has no timeout, and a
// thread that blocks in it forever could not be joined.
func flock(f *os.File, report io.Writer, patience time.Duration) bool {
	began, said := time.Now(), ""
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		waited := time.Since(began).Round(time.Millisecond)
		switch {
		case err == nil:
			if said != "" {
				fmt.Fprintf(report, "%s: waited %v for other privileged test packages\n", myName(), waited)
			}
			return true
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			fmt.Fprintf(report, "locking %q: %v\n", f.Name(), err)
			return false
		case waited > patience:
			fmt.Fprintf(report, "locking %q: still held by %s after %v, going on without it\n", f.Name(), holder(f), patience)
			return false
		}
		if h := holder(f); h != said {
			fmt.Fprintf(report, "%s: waiting for another privileged test package, %s\n", myName(), h)
			said = h
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// holder reads the name in the lock file.
func holder(f *os.File) string {
	name := make([]byte, 200)
	n, _ := f.ReadAt(name, 0)
	if line, _, ok := strings.Cut(string(name[:n]), "\n"); ok {
		return line
	}
	return "which has not said its name"
}

// myName names this test binary for people: "cgroups.test (pid 42)".
func myName() string { return fmt.Sprintf("%s (pid %d)", filepath.Base(os.Args[0]), os.Getpid()) }
