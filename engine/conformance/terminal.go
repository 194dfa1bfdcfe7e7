package conformance

import (
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// openTerminal starts a command at a terminal of 24 by 80. Text written to the returned writer is typed there.
func openTerminal(t testing.TB, b engine.Box, c engine.Command) (engine.Process, *boxtest.Screen, io.WriteCloser) {
	t.Helper()
	in, keyboard := io.Pipe()
	out := boxtest.NewScreen()
	c.Stdin, c.Stdout, c.TTY = in, out, &engine.WindowSize{Rows: 24, Cols: 80}
	p := boxtest.Begin(t, b, c)
	t.Cleanup(func() { keyboard.Close() })
	return p, out, keyboard
}

func (e *suite) terminal(t testing.TB) {
	for _, u := range []engine.User{{}, {UID: 1000, GID: 1000}} {
		b := e.create(t, engine.Spec{User: u})
		out := boxtest.NewScreen()
		c := boxtest.Shell(`test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo $TERM && echo direct > /dev/tty && stat -c %u $(tty) && ls /dev/pts; echo err >&2; exit 5`)
		c.TTY, c.Stdout = &engine.WindowSize{Rows: 31, Cols: 97}, out
		o := boxtest.Run(t, b, c)
		boxtest.Want(t, o, engine.Exited, 5)
		uid := "0"
		if u.UID != 0 {
			uid = "1000"
		}
		got := strings.ReplaceAll(out.String(), "\r\n", "\n")
		if got != "/dev/pts/0\n31 97\nxterm\ndirect\n"+uid+"\n0  ptmx\nerr\n" && got != "/dev/pts/0\n31 97\nxterm\ndirect\n"+uid+"\n0\nptmx\nerr\n" {
			t.Errorf("user %d: %q", u.UID, got)
		}
	}
}

// terminalAtItsEnd: without input a program at a terminal sees the end of file, also
// one that changes the terminal's mode before it reads, or reads again.
func (e *suite) terminalAtItsEnd(t testing.TB) {
	b := e.create(t, engine.Spec{})
	for _, in := range []io.Reader{nil, strings.NewReader("")} {
		for _, args := range [][]string{{"bash", "--norc"}, {"sh", "-c", "cat; cat"}, {"python3", "-i", "-c", ""}} {
			c := engine.Command{Args: args, Stdin: in, TTY: &engine.WindowSize{Rows: 24, Cols: 80}, Timeout: 20 * time.Second}
			boxtest.Want(t, boxtest.Run(t, b, c), engine.Exited, 0)
		}
	}
}

// terminalLimit: if all terminals of a box are open, starting a command with one fails with that reason, and other
// commands keep running.
func (e *suite) terminalLimit(t testing.TB) {
	b := e.create(t, engine.Spec{})
	out := boxtest.NewScreen()
	c := boxtest.Python(`
import os, sys
held = []
try:
    while True: held.append(os.open("/dev/ptmx", os.O_RDWR))
except OSError as e: print(len(held), e.strerror, flush=True)
sys.stdin.read()
`)
	in, end := io.Pipe()
	defer end.Close() // also where the engine differs, and the test ends early
	c.Stdin, c.Stdout = in, out
	p := boxtest.Begin(t, b, c)
	out.Await(t, "16 No space left on device")
	_, err := b.Start(t.Context(), engine.Command{Args: []string{"true"}, TTY: &engine.WindowSize{Rows: 24, Cols: 80}})
	if !errors.Is(err, engine.ErrAtLimit) || !strings.Contains(err.Error(), "the box has 16 open") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	boxtest.WantOutput(t, b, "echo alive", "alive\n")
	end.Close()
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	boxtest.Want(t, boxtest.Run(t, b, engine.Command{Args: []string{"true"}, TTY: &engine.WindowSize{Rows: 24, Cols: 80}}), engine.Exited, 0)
}

func (e *suite) terminalResize(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p, out, _ := openTerminal(t, b, boxtest.Python(`
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
while True:
    s = os.get_terminal_size(0)
    os.write(1, f"size {s.lines}x{s.columns}.".encode())
    signal.sigwait([signal.SIGWINCH])
`))
	out.Await(t, "size 24x80.")
	for _, s := range []struct {
		size engine.WindowSize
		want string
	}{
		{engine.WindowSize{Rows: 50, Cols: 132}, "size 50x132."},
		{engine.WindowSize{Rows: 1, Cols: 1}, "size 1x1."},
		{engine.WindowSize{Rows: 65535, Cols: 65535}, "size 65535x65535."},
	} {
		if err := p.Resize(s.size); err != nil {
			t.Fatal(err)
		}
		out.Await(t, s.want)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if r := boxtest.Wait(t, p); r.Signal != syscall.SIGTERM {
		t.Errorf("%+v, %q", r, out)
	}
}

// terminalKeys: ^C, ^Z, ^\ and ^D do what they do at any terminal.
func (e *suite) terminalKeys(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p, out, keyboard := openTerminal(t, b, boxtest.Shell("echo ready; exec sleep 3600"))
	out.Await(t, "ready")
	io.WriteString(keyboard, "\x03")
	if r := boxtest.Wait(t, p); r.Signal != syscall.SIGINT {
		t.Errorf("^C: %+v", r)
	}

	p, out, keyboard = openTerminal(t, b, boxtest.Shell("echo ready; exec sleep 3600"))
	out.Await(t, "ready")
	io.WriteString(keyboard, "\x1c")
	if r := boxtest.Wait(t, p); r.Signal != syscall.SIGQUIT {
		t.Errorf("^\\: %+v", r)
	}

	// The end of the caller's input is ^D.
	p, out, keyboard = openTerminal(t, b, boxtest.Shell("cat; echo end"))
	io.WriteString(keyboard, "line\n")
	out.Await(t, "line\r\nline\r\n") // the echo, then cat
	keyboard.Close()
	out.Await(t, "end")
	if r := boxtest.Wait(t, p); r.ExitCode != 0 {
		t.Errorf("^D: %+v", r)
	}
}

// terminalJobs: a shell with job control, as a person uses it.
func (e *suite) terminalJobs(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p, out, keyboard := openTerminal(t, b, engine.Command{Args: []string{"bash", "--norc", "--noprofile", "-i"}, Env: []string{"PS1=prompt> "}})
	out.Await(t, "prompt> ")
	for _, line := range []struct{ typed, shown string }{
		{"echo $((6*7))\n", "42\r\n"},
		{"sh -c 'echo u''p; exec cat'\n", "up\r\n"},
		{"x\n", "x\r\nx\r\n"},
		{"\x1a", "Stopped"},
		{"jobs\n", "Stopped"},
		// wait does not wait for a stopped job, and bash does not exit while it
		// believes that there is one.
		{"kill %1; while jobs %1; do sleep 0.01; done >/dev/null 2>&1; echo go''ne\n", "gone\r\n"},
		{"exit 9\n", "exit"},
	} {
		io.WriteString(keyboard, line.typed)
		out.Await(t, line.shown)
	}
	if r := boxtest.Wait(t, p); r.ExitCode != 9 {
		t.Errorf("%+v", r)
	}
}

// terminalHangup: a process that holds the terminal dies with the command.
func (e *suite) terminalHangup(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p, out, _ := openTerminal(t, b, boxtest.Shell("trap '' HUP; (trap '' HUP TERM INT; exec sleep 3600) & setsid sleep 3600 & echo ready; exit 3"))
	out.Await(t, "ready")
	if r := boxtest.Wait(t, p); r.ExitCode != 3 {
		t.Errorf("%+v", r)
	}
	e.wantNoCommands(t, b)
}

// terminalLimits: output is bounded and ended as without a terminal.
func (e *suite) terminalLimits(t testing.TB) {
	b := e.create(t, engine.Spec{})
	out := boxtest.NewScreen()
	c := boxtest.Shell("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done")
	c.TTY, c.Stdout, c.OutputLimit = &engine.WindowSize{Rows: 24, Cols: 80}, out, 50_000
	o := boxtest.Run(t, b, c)
	boxtest.Want(t, o, engine.OutputLimit, 137)
	if n := len(out.String()); n != 50_000 {
		t.Errorf("%d bytes came", n)
	}
}

// slowOnce takes its time for the first write, and none for the others.
type slowOnce struct{ n int }

func (s *slowOnce) Write(p []byte) (int, error) {
	if s.n == 0 {
		time.Sleep(3 * time.Second) // longer than a command that has ended is waited for
	}
	s.n += len(p)
	return len(p), nil
}

// What a command has written to its terminal is not lost because its reader is slow.
func (e *suite) terminalTail(t testing.TB) {
	b := e.create(t, engine.Spec{})
	for _, background := range []string{"", "; sleep 30 &"} {
		w := &slowOnce{}
		cmd := boxtest.Shell("stty raw -echo; head -c 11000 /dev/zero | tr '\\0' x" + background)
		cmd.TTY = &engine.WindowSize{Rows: 24, Cols: 80}
		cmd.Stdout, cmd.KeepBackground = w, background != ""
		r := boxtest.Wait(t, boxtest.Begin(t, b, cmd))
		if w.n != 11000 || r.Verdict != engine.Exited {
			t.Errorf("background %q: %d of 11000 bytes, verdict %v", background, w.n, r.Verdict)
		}
	}
}
