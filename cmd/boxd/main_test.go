package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// boxd returns a command that runs the binary under test with args.
func boxd(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	testutil.RequireRoot(t)
	path, init := testutil.BuildBinaries(t)
	// A boxd that hangs fails its own test, not the whole run.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), "BOXD_INIT="+init)
	return cmd
}

// run returns the exit status and the output of boxd.
func run(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := boxd(t, args...)
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	return exitStatus(t, cmd.Run()), out.String(), err.String()
}

func exitStatus(t *testing.T, err error) int {
	t.Helper()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		flags  string
		script string
		status int
		stdout string
		stderr string // contained in; "" wants none
	}{
		{"", "echo out", 0, "out\n", ""},
		{"", "echo oops >&2; exit 42", 42, "", "oops\n"},
		{"", "kill -KILL $$", 137, "", ""},
		{"", "kill -SEGV $$", 139, "", ""},
		{"-e A=1 -e B=2", "echo $A$B$HOME", 0, "12/home/box\n", ""},
		{"-w /tmp/new --mkdir", "pwd", 0, "/tmp/new\n", ""},
		{"-w /missing", "pwd", 125, "", `boxd: entering "/missing": working directory does not exist`},
		{"-u 1000:5", "id -u; id -g", 0, "1000\n5\n", ""},
		{"--hostname a.example", "hostname", 0, "a.example\n", ""},
		{"", "cat", 0, "", ""},
		{"--timeout 200ms --grace 100ms", "sleep 60", 124, "", "verdict: timeout (limit 200ms)\n"},
		{"--memory 16M", "head -c 100000000 /dev/zero | tail", 137, "", "verdict: oom (limit 16 MiB)\n"},
		{"--output-limit 1k", "yes", 137, strings.Repeat("y\n", 512), "verdict: output-limit (limit 1 KiB)\n"},
		{"--rw-rootfs", "echo x > /usr/x && cat /usr/x", 0, "x\n", ""},
	} {
		if c.flags == "--rw-rootfs" && testutil.Lacks("id-mapped root file system") {
			c.status, c.stdout, c.stderr = 125, "", "which a writable root needs; run without it"
		}
		args := append([]string{"run", "--shell"}, strings.Fields(c.flags)...)
		status, stdout, stderr := run(t, append(args, "--", c.script)...)
		if status != c.status || stdout != c.stdout || !strings.Contains(stderr, c.stderr) || (c.stderr == "") != (stderr == "") {
			t.Errorf("%s -- %s: status %d, stdout %.100q, stderr %q; want %d, %.100q, %q", c.flags, c.script, status, stdout, stderr, c.status, c.stdout, c.stderr)
		}
	}
}

// TestRefused: one line, status 125, 126 or 127.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, c := range []struct {
		args   string
		status int
	}{
		{"-- no-such-program", 127},
		{"-- /no/such/program", 127},
		{"-- /etc/passwd", 126},
		{"-- /tmp", 126},
		{"-v /does/not/exist:/x -- true", 125},
		{"-v " + dir + "/socket:/x -- true", 125},
		{"-v /dev/null:/x -- true", 125},
		{"-v /:/x -- true", 125},
		{"-v /etc:/x -- true", 125},
		{"-v /proc:/x -- true", 125},
		{"--workspace /does/not/exist -- true", 125},
		{"--init /bin/true -- true", 125},
		{"--init /does/not/exist -- true", 125},
		{"--state-dir relative -- true", 125},
		{"--memory 1M -- true", 125},
	} {
		status, stdout, stderr := run(t, append([]string{"run"}, strings.Fields(c.args)...)...)
		if status != c.status || stdout != "" || !strings.HasPrefix(stderr, "boxd: ") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: status %d, stdout %q, stderr %q; want %d and one line", c.args, status, stdout, stderr, c.status)
		}
	}
}

func TestJSON(t *testing.T) {
	status, stdout, stderr := run(t, "run", "--json", "--memory", "64M", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
	var doc struct {
		ExitCode int `json:"exit_code"`
		Verdict  string
		Stdout   string
		Stderr   string
		Receipt  struct {
			Wall float64 `json:"wall_ms"`
		}
	}
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
		t.Fatalf("%v: %q, stderr %q", err, stdout, stderr)
	}
	if status != 3 || doc.ExitCode != 3 || doc.Verdict != "exited" || doc.Stdout != "out\n" || doc.Stderr != "err\n" || doc.Receipt.Wall <= 0 {
		t.Errorf("status %d, %+v", status, doc)
	}
}

// TestStdin: only -i passes stdin on.
func TestStdin(t *testing.T) {
	for flag, want := range map[string]string{"-i": "input", "--json=false": ""} {
		cmd := boxd(t, "run", flag, "--", "cat")
		cmd.Stdin = strings.NewReader("input")
		if out, err := cmd.Output(); err != nil || string(out) != want {
			t.Errorf("%s: %q, %v, want %q", flag, out, err, want)
		}
	}
}

// TestSignals: the command gets the first signal; if it ignores that, the second one kills it.
func TestSignals(t *testing.T) {
	for _, c := range []struct {
		script string
		count  int
		status int
	}{
		{"echo up; sleep 60", 1, 143},
		{"trap 'exit 7' TERM; echo up; " + testutil.SignalLoop, 1, 7},
		{"trap 'echo up' TERM; echo up; " + testutil.SignalLoop, 2, 143},
	} {
		cmd := boxd(t, "run", "--shell", "--", c.script)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for range c.count {
			if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
				t.Errorf("%s: %v", c.script, err)
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
		if status := exitStatus(t, cmd.Wait()); status != c.status {
			t.Errorf("%s: status %d, want %d", c.script, status, c.status)
		}
	}
}

// TestTerminal runs a shell on a real terminal. Its size is visible inside, and its mode is the same
// afterwards.
func TestTerminal(t *testing.T) {
	keyboard, tty := openPTY(t)
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 101}); err != nil {
		t.Fatal(err)
	}
	// On the keyboard's end this reads the mode of the other end, tty_ioctl(4).
	before, err := unix.IoctlGetTermios(int(keyboard.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := boxd(t, "run", "-it", "--shell", "--", `stty size; read line; echo "got <$line>"; tty; exit 9`)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close() // so that reading ends with boxd
	seen := readUntil(t, keyboard, "33 101\r\n")
	if _, err := keyboard.WriteString("hello\r"); err != nil {
		t.Fatal(err)
	}
	seen += readUntil(t, keyboard, "/dev/pts/0\r\n")
	if status := exitStatus(t, cmd.Wait()); status != 9 || !strings.Contains(seen, "got <hello>\r\n") {
		t.Errorf("status %d, screen %q", status, seen)
	}
	after, err := unix.IoctlGetTermios(int(keyboard.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("terminal mode is %+v, was %+v, %v", after, before, err)
	}
}

// readUntil reads from the screen up to the end of text.
func readUntil(t *testing.T, screen *os.File, text string) string {
	t.Helper()
	var seen []byte
	buf := make([]byte, 1024)
	for !bytes.Contains(seen, []byte(text)) {
		n, err := screen.Read(buf)
		if err != nil {
			t.Fatalf("screen %q: %v", seen, err)
		}
		seen = append(seen, buf[:n]...)
	}
	return string(seen)
}

func openPTY(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return keyboard, tty
}

func TestDoctor(t *testing.T) {
	status, stdout, stderr := run(t, "doctor", "--json")
	var report struct{ OK bool }
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || status != 0 || !report.OK {
		t.Errorf("status %d, stdout %s, stderr %s, %v", status, stdout, stderr, err)
	}
}
