package relay

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openPTY returns the two ends of a new terminal.
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("opening /dev/ptmx: %v", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// TestRealTerminal: a shell on a terminal sees size and signals, and its exit follows all of
// its output.
func TestRealTerminal(t *testing.T) {
	master, slave := openPTY(t)
	defer master.Close()
	cmd := exec.Command("sh", "-c", `trap 'echo got INT' INT; read a; stty size; until read b; do :; done; echo "$a $b"; exit 3`)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()

	p := newProc(4 << 10)
	p.in.onData = func(b []byte) { master.Write(b) }
	src := p.source()
	src.Stderr, src.TTY = nil, true
	src.Resize = func(rows, cols uint16) error {
		return unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}
	src.Signal = func(sig syscall.Signal) error { return cmd.Process.Signal(sig) }
	s := serveSource(t, p, src, Options{})
	go func() {
		io.Copy(p.out, struct{ io.Reader }{master}) // up to EIO, when the last slave is closed
		p.exit = Exit{Code: exitCode(cmd.Wait()), Verdict: "exited"}
		p.out.close()
		close(p.done)
	}()

	c := s.dial(asWriter)
	c.Resize(42, 99)
	c.Write([]byte("one\n"))
	var text strings.Builder
	for !strings.Contains(text.String(), "42 99") {
		text.Write(nextData(t, c))
	}
	c.Signal(int(syscall.SIGINT))
	for !strings.Contains(text.String(), "got INT") {
		text.Write(nextData(t, c))
	}
	c.Write([]byte("two\n"))
	got := collect(c)
	text.Write(got.out[Stdout].Bytes())
	if !strings.HasSuffix(text.String(), "one two\r\n") {
		t.Errorf("output %q", text.String())
	}
	if len(got.exit) != 1 || got.exit[0].Code != 3 {
		t.Errorf("exits %v, %v", got.exit, got.err)
	}
}

func nextData(t *testing.T, c *Client) []byte { return next[Data](t, c).Bytes }

func exitCode(err error) int {
	if e, ok := err.(*exec.ExitError); ok {
		return e.ExitCode()
	}
	return 0
}
