package agent

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// newTestTerminal returns master and slave of a terminal in raw mode. The master does
// not block.
func newTestTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	master = os.NewFile(uintptr(fd), "master")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	peer, err := unix.IoctlRetInt(fd, unix.TIOCGPTPEER)
	if err != nil {
		t.Fatal(err)
	}
	slave = os.NewFile(uintptr(peer), "slave")
	mode, err := unix.IoctlGetTermios(peer, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	mode.Iflag, mode.Lflag = 0, 0
	if err := unix.IoctlSetTermios(peer, unix.TCSETS, mode); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close(); slave.Close() })
	return master, slave
}

// TestTerminalEndWaits: a terminal that is full does not lose the end-of-file character.
func TestTerminalEndWaits(t *testing.T) {
	master, slave := newTestTerminal(t)
	// The kernel moves what was written into the terminal's buffer of 4,095 bytes a little later, which makes room again.
	for full := false; ; {
		if _, err := unix.Write(int(master.Fd()), bytes.Repeat([]byte("x"), 100)); err != nil {
			if full {
				break
			}
			n, err := unix.IoctlGetInt(int(slave.Fd()), unix.TIOCINQ)
			if err != nil {
				t.Fatal(err)
			}
			full = n >= 4095
		}
	}
	if err := unix.SetNonblock(int(master.Fd()), true); err != nil { // Fd has made it block
		t.Fatal(err)
	}
	in, err := newInput(master, true)
	if err != nil {
		t.Fatal(err)
	}
	defer in.abandon()
	c, p := newTestClient(t)
	if !in.end(c, 0) {
		t.Error("the end of the input breaks a rule")
	}
	var m wire.AcceptedMsg
	if p.next(wire.TypeAccepted, &m); m.State != wire.InputOpen {
		t.Errorf("state %d before the end is in the terminal", m.State)
	}
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		b := make([]byte, 1000)
		for {
			n, err := slave.Read(b)
			if err != nil || bytes.IndexByte(b[:n], 4) >= 0 {
				return
			}
		}
	}()
	select {
	case <-seen:
	case <-time.After(testutil.Patience()):
		t.Fatal("the end of the input never came")
	}
	for m.State == wire.InputOpen {
		p.next(wire.TypeAccepted, &m)
	}
	if m.State != wire.InputClosed || m.Offset != 0 {
		t.Errorf("%+v", m)
	}
}
