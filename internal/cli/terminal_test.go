package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"golang.org/x/sys/unix"
)

// openPTY returns the two ends of a new pseudoterminal, closed with the test.
func openPTY(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

func mode(t *testing.T, tty *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

func resize(t *testing.T, tty *os.File, rows, cols uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		t.Fatal(err)
	}
}

func isRaw(m unix.Termios) bool {
	return m.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) == 0 && m.Oflag&unix.OPOST == 0 && m.Iflag&unix.ICRNL == 0
}

func TestTTY(t *testing.T) {
	_, tty := openPTY(t)
	resize(t, tty, 30, 100)
	before := mode(t, tty)
	v := newInvocation(t)
	v.Stdin, v.Stdout = tty, tty
	v.fake.behave = func(p *fakeProcess) engine.Result {
		if !isRaw(mode(t, tty)) {
			t.Error("terminal is not raw while the command runs")
		}
		if got, want := <-p.sizes, (engine.WindowSize{Rows: 30, Cols: 100}); got != want {
			t.Errorf("first size %v, want %v", got, want)
		}
		resize(t, tty, 40, 120)
		// The pty is not our controlling terminal, so the kernel sends no signal.
		if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil {
			t.Error(err)
		}
		if got, want := <-p.sizes, (engine.WindowSize{Rows: 40, Cols: 120}); got != want {
			t.Errorf("size after the change %v, want %v", got, want)
		}
		return engine.Result{Verdict: engine.Exited, ExitCode: 5}
	}
	if status := v.Main([]string{"run", "-it", "x"}); status != 5 {
		t.Errorf("status %d: %s", status, v.stderr.String())
	}
	if mode(t, tty) != before {
		t.Error("terminal was not restored")
	}
	cmd := v.fake.cmd
	if cmd.Stdin != tty || cmd.Stdout != tty || cmd.Stderr != nil || *cmd.TTY != (engine.WindowSize{Rows: 30, Cols: 100}) || !slices.Equal(cmd.Env, []string{"TERM=vt220"}) {
		t.Errorf("command %+v", cmd)
	}
}

// TestTTYWithoutInput: the local terminal stays as it is, because in raw mode ^C would do nothing.
func TestTTYWithoutInput(t *testing.T) {
	_, tty := openPTY(t)
	v := newInvocation(t)
	v.Stdin, v.Stdout = tty, tty
	v.fake.behave = func(*fakeProcess) engine.Result {
		if isRaw(mode(t, tty)) {
			t.Error("terminal is raw")
		}
		return engine.Result{Verdict: engine.Exited}
	}
	if status := v.Main([]string{"run", "-t", "-e", "TERM=dumb", "x"}); status != 0 {
		t.Errorf("status %d: %s", status, v.stderr.String())
	}
	if cmd := v.fake.cmd; cmd.Stdin != nil || cmd.TTY == nil || *cmd.TTY != (engine.WindowSize{Rows: 24, Cols: 80}) || !slices.Equal(cmd.Env, []string{"TERM=dumb"}) {
		t.Errorf("command %+v", cmd)
	}
}

func TestTTYIsRestored(t *testing.T) {
	_, tty := openPTY(t)
	before := mode(t, tty)
	for name, play := range map[string]func(v *invocation){
		"start fails": func(v *invocation) {
			v.fake.startErr = engine.ErrNotFound
			v.Main([]string{"run", "-it", "x"})
		},
		"two signals": func(v *invocation) {
			running := make(chan bool)
			v.fake.behave = func(p *fakeProcess) engine.Result {
				running <- true
				<-p.ctx.Done()
				return engine.Result{Verdict: engine.Canceled, ExitCode: -1}
			}
			status := runAsync(v, "-it", "x")
			<-running
			v.signals <- syscall.SIGHUP
			v.signals <- syscall.SIGHUP
			if got := <-status; got != 129 {
				t.Errorf("status %d, want 129", got)
			}
		},
		"panic": func(v *invocation) {
			defer func() {
				if recover() == nil {
					t.Error("panic did not come through")
				}
			}()
			v.fake.behave = func(*fakeProcess) engine.Result { panic("test") }
			v.Main([]string{"run", "-it", "x"})
		},
	} {
		v := newInvocation(t)
		v.Stdin, v.Stdout = tty, tty
		play(v)
		if mode(t, tty) != before {
			t.Errorf("%s: terminal was not restored", name)
		}
	}
}

// TestTTYWithoutTerminal: -it in a pipe is refused, as by docker. With -t alone, stdin is not passed
// on, and the size is that of a VT100.
func TestTTYWithoutTerminal(t *testing.T) {
	v := newInvocation(t)
	v.Stdin = strings.NewReader("exit\n")
	if status := v.Main([]string{"run", "-it", "x"}); status != 125 || v.fake.log != nil || v.stderr.String() != "boxd: --tty with --interactive: stdin is not a terminal: leave out -t, or run it at a terminal\n" {
		t.Errorf("status %d, %q, %q", status, v.stderr.String(), v.fake.log)
	}
	v = newInvocation(t)
	v.Stdin = strings.NewReader("exit\n")
	if status := v.Main([]string{"run", "-t", "x"}); status != 0 {
		t.Errorf("status %d: %s", status, v.stderr.String())
	}
	if cmd := v.fake.cmd; cmd.TTY == nil || *cmd.TTY != (engine.WindowSize{Rows: 24, Cols: 80}) || cmd.Stdin != nil {
		t.Errorf("command %+v", cmd)
	}
}
