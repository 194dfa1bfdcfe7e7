package linux

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newTerminal returns a terminal in canonical mode without echo. The master is
// non-blocking.
func newTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	pts, err := os.Open("/dev/pts")
	if err != nil {
		t.Fatal(err)
	}
	defer pts.Close()
	blocking, slave, err := OpenPTY(pts)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(blocking.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	blocking.Close()
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	master = os.NewFile(uintptr(fd), "master")
	t.Cleanup(func() { master.Close(); slave.Close() })
	setMode(t, slave, true)
	return master, slave
}

func setMode(t *testing.T, tty *os.File, canonical bool) {
	t.Helper()
	mode, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	mode.Lflag &^= unix.ECHO | unix.ICANON
	if canonical {
		mode.Lflag |= unix.ICANON
	}
	if err := unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, mode); err != nil {
		t.Fatal(err)
	}
}

// endTerminal begins to end the input of a terminal and returns after the first attempt.
// The returned function stops it.
func endTerminal(t *testing.T, master *os.File) (stop func()) {
	t.Helper()
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	gone, begun, done := make(chan struct{}), make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		EndTerminalInput(raw, gone, func(err error) { begun <- err })
	}()
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
	return func() { close(gone); <-done }
}

// readOnce makes one read(2), which waits at most 20 s.
func readOnce(t *testing.T, tty *os.File) string {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(tty.Fd()), Events: unix.POLLIN}}
	var n int
	err := Retry(func() (err error) {
		n, err = unix.Poll(poll, int((20 * time.Second).Milliseconds()))
		return err
	})
	if n != 1 || err != nil {
		t.Fatalf("nothing to read: %d, %v", n, err)
	}
	buf := make([]byte, 100)
	n, err = unix.Read(int(tty.Fd()), buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// Every read at the end of a pipe returns end of file; at a terminal, one VEOF ends one read.
func TestEndOfTerminalIsSeenByEachRead(t *testing.T) {
	master, slave := newTerminal(t)
	if _, err := master.WriteString("a line\npart"); err != nil {
		t.Fatal(err)
	}
	defer endTerminal(t, master)()
	for i, want := range []string{"a line\n", "part", "", "", ""} {
		if got := readOnce(t, slave); got != want {
			t.Fatalf("read %d: %q, want %q", i, got, want)
		}
	}
}

// A program that leaves canonical mode before it reads, as a shell with line editing
// does, still gets the key.
func TestEndOfTerminalAcrossModes(t *testing.T) {
	master, slave := newTerminal(t)
	defer endTerminal(t, master)()
	setMode(t, slave, false)
	for got := ""; !strings.HasSuffix(got, "\x04"); {
		// The key comes twice if the mode changes between the check and the write.
		if got = readOnce(t, slave); strings.Trim(got, "\x00\x04") != "" {
			t.Fatalf("got %q", got)
		}
	}
	setMode(t, slave, true)
	if got := readOnce(t, slave); got != "" {
		t.Errorf("in canonical mode again: %q", got)
	}
}

func TestEndOfTerminalEndsWithIt(t *testing.T) {
	master, _ := newTerminal(t)
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	master.Close()
	EndTerminalInput(raw, nil, nil) // returns
}
