package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

// pty is a terminal with boxd at it.
type pty struct {
	t      *testing.T
	fd     int // of master, for ioctls
	master *os.File
	cmd    *exec.Cmd

	mu    sync.Mutex
	text  strings.Builder
	seen  int // what await has passed
	wrote chan struct{}
	ended chan struct{}
}

// openPTY calls boxd as the leader of a session at a terminal of rows × cols.
func (c *cli) openPTY(rows, cols uint16, args ...string) *pty {
	c.t.Helper()
	// Not os.OpenFile: its Fd makes the file blocking, and then no Close would end
	// a Read.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	p := &pty{t: c.t, fd: fd, master: os.NewFile(uintptr(fd), "master"), wrote: make(chan struct{}, 1), ended: make(chan struct{})}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer slave.Close()
	p.resize(rows, cols)
	cmd, cancel := c.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	p.cmd = cmd
	go p.read()
	c.t.Cleanup(func() {
		cancel() // kills it, if it still runs
		p.wait()
		p.master.Close()
		<-p.ended
	})
	return p
}

func (p *pty) read() {
	defer close(p.ended)
	buf := make([]byte, 4096)
	for {
		n, err := p.master.Read(buf)
		p.mu.Lock()
		p.text.Write(buf[:n])
		p.mu.Unlock()
		select {
		case p.wrote <- struct{}{}:
		default:
		}
		if err != nil {
			return // EIO: nobody has the other side any more
		}
	}
}

func (p *pty) resize(rows, cols uint16) {
	p.t.Helper()
	if err := unix.IoctlSetWinsize(p.fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pty) send(keys string) {
	p.t.Helper()
	if _, err := io.WriteString(p.master, keys); err != nil {
		p.t.Fatal(err)
	}
}

// await returns when text has been printed after the text of the previous await.
func (p *pty) await(text string) {
	p.t.Helper()
	timeout := time.After(patience)
	for last := false; ; {
		p.mu.Lock()
		all := p.text.String()
		i := strings.Index(all[p.seen:], text)
		if i >= 0 {
			p.seen += i + len(text)
		}
		p.mu.Unlock()
		if i >= 0 {
			return
		}
		if last {
			p.t.Fatalf("%q was not printed; there is %q", text, all)
		}
		select {
		case <-p.wrote:
		case <-p.ended:
			last = true // what it printed at the end has not been looked at
		case <-timeout:
			p.t.Fatalf("%q was not printed in %v; there is %q", text, patience, all)
		}
	}
}

func (p *pty) wait() int {
	p.t.Helper()
	_ = p.cmd.Wait() // the status says it
	return p.cmd.ProcessState.ExitCode()
}

// mode is the terminal's, as stty shows it.
func (p *pty) mode() unix.Termios {
	p.t.Helper()
	mode, err := unix.IoctlGetTermios(p.fd, unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *mode
}

// TestTerminal is boxd run -it as a person uses it.
func TestTerminal(t *testing.T) {
	c := newCLI(t)
	c.env = append(c.env, "TERM=vt100")
	p := c.openPTY(33, 111, "run", "-it", "--", "sh", "-c", `
		trap 'echo interrupted' INT
		tty; stty size; echo $TERM; test -t 2 && echo all
		read -r line; echo "got <$line>"
		sh -c 'trap "stty size; exit" WINCH; echo waiting; while :; do sleep 0.05; done'
		sh -c 'echo sleeping; exec sleep 3600'
		sh -c 'echo reading; exec cat'
		exit 7`)
	p.await("/dev/pts/0\r\n33 111\r\nvt100\r\nall\r\n")
	p.send("hello\r")
	p.await("hello\r\ngot <hello>\r\n") // one echo, that of the terminal in the box
	// A shell looks at its traps when a program that it waits for has ended; how
	// a read takes a signal differs from shell to shell.
	p.await("waiting")
	p.resize(44, 99)
	p.await("44 99")
	p.await("sleeping")
	p.send("\x03")
	p.await("interrupted")
	p.await("reading")
	p.send("\x04")
	if status := p.wait(); status != 7 {
		t.Errorf("status %d, %q", status, p.text.String())
	}
}

// TestTerminalIsRestored: whatever the end, the person's terminal is as before.
func TestTerminalIsRestored(t *testing.T) {
	c := newCLI(t)
	for _, r := range []struct {
		name   string
		args   []string
		end    func(p *pty)
		status int
	}{
		{"exit", []string{"-it", "--", "sh", "-c", "stty raw -echo; echo ready; exit 3"}, func(*pty) {}, 3},
		{"timeout", []string{"-it", "--timeout", "300ms", "--grace", "1ms", "--", "sh", "-c", "echo ready; exec sleep 3600"}, func(*pty) {}, 124},
		{"SIGTERM", []string{"-it", "--", "sh", "-c", "echo ready; exec sleep 3600"}, func(p *pty) { p.cmd.Process.Signal(syscall.SIGTERM) }, 143},
		{"twice", []string{"-it", "--", "sh", "-c", "trap 'echo Terminated' TERM; echo ready; " + testutil.SignalLoop}, func(p *pty) {
			p.cmd.Process.Signal(syscall.SIGTERM)
			p.await("Terminated")
			p.cmd.Process.Signal(syscall.SIGTERM)
			p.await("verdict: canceled")
		}, 143},
		{"not found", []string{"-it", "--", "nosuchprogram"}, nil, 127},
	} {
		t.Run(r.name, func(t *testing.T) {
			c := *c
			c.t = t
			p := c.openPTY(24, 80, append([]string{"run"}, r.args...)...)
			if r.end != nil {
				p.await("ready")
				r.end(p)
			} else {
				p.await("not found")
			}
			status := p.wait()
			if status != r.status {
				t.Errorf("status %d, want %d; %q", status, r.status, p.text.String())
			}
			if mode := p.mode(); mode.Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) != unix.ECHO|unix.ICANON|unix.ISIG || mode.Oflag&unix.OPOST == 0 {
				t.Errorf("terminal is left in mode %+v", mode)
			}
		})
	}
}

// TestTerminalWithoutOne: -t where boxd itself has none, as in a script.
func TestTerminalWithoutOne(t *testing.T) {
	c := newCLI(t)
	c.want(result{0, "/dev/pts/0\r\n24 80\r\n", ""}, "-t", "--", "sh", "-c", "tty; stty size")
	c.stdin = strings.NewReader("line\n")
	// A terminal without input is at its end at once, also for a shell that edits lines.
	if got := c.run("run", "-t", "--timeout", "20s", "--", "bash", "--norc"); got.status != 0 {
		t.Errorf("%v", got)
	}
	if got := c.run("run", "-it", "--", "cat"); got.status != 125 || got.stdout != "" || !strings.Contains(got.stderr, "stdin is not a terminal") {
		t.Errorf("%v", got)
	}
}
