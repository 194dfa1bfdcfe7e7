package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// daemon is a boxd serve with directories of its own, and the commands to it.
type daemon struct {
	*cli
	dir        string              // state directory
	flags      []string            // of boxd serve
	credential *syscall.Credential // whom it is started as; nil: root
	unit       *os.File            // cgroup that it is started in; nil: that of the tests
	cmd        *exec.Cmd
	ended      chan struct{}
	cancel     context.CancelFunc
	log        string     // file
	extra      []*os.File // descriptors from 3 on
	notify     *net.UnixConn
}

// newDaemon returns a daemon that does not run yet. When the test has ended, all
// of it is removed: daemon, sessions and launcher.
func newDaemon(t *testing.T, flags ...string) *daemon {
	t.Helper()
	c := newCLI(t)
	// Not below /run: nothing there is ever mounted, and workspaces are.
	dir, err := os.MkdirTemp("/tmp", "boxd-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &daemon{cli: c, dir: filepath.Join(dir, "state"), flags: flags, log: filepath.Join(dir, "log")}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	_, gid := servingUser(t)
	if err := errors.Join(os.Mkdir(d.dir, 0o700), os.Chown(d.dir, 0, gid)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "notify")
	if d.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	c.env = []string{"PATH=" + filepath.Dir(c.boxd) + ":" + os.Getenv("PATH"), "HOME=/root", "TERM=vt100",
		"BOXD_INIT=" + c.init, "BOXD_SOCKET=" + d.socket()}
	c.env = append(c.env, engineEnv...)
	t.Cleanup(func() { d.notify.Close() })
	t.Cleanup(func() {
		d.end()
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", d.logged())
		}
	})
	return d
}

func (d *daemon) socket() string { return filepath.Join(d.dir, "boxd.sock") }

// startDaemon is newDaemon and start.
func startDaemon(t *testing.T, flags ...string) *daemon {
	t.Helper()
	d := newDaemon(t, flags...)
	d.start()
	return d
}

// launch runs boxd serve without waiting for it.
func (d *daemon) launch(flags ...string) {
	d.t.Helper()
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	// Not t.Context: that ends before the clean-up, which stops the daemon.
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, d.boxd, append(append([]string{"serve", "--state-dir", d.dir, "--log-level", "debug"}, d.flags...), flags...)...)
	cmd.Env = append(d.env, "NOTIFY_SOCKET="+d.notify.LocalAddr().String())
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, d.extra
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: d.credential}
	if d.unit != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(d.unit.Fd())
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its state says it
	}()
	d.cmd, d.ended, d.cancel = cmd, ended, cancel
}

// start runs the daemon and returns when it is ready.
func (d *daemon) start(flags ...string) {
	d.t.Helper()
	d.launch(flags...)
	d.awaitNotify("READY=1")
}

// awaitNotify waits until the daemon has told the service manager state.
func (d *daemon) awaitNotify(state string) {
	d.t.Helper()
	buf := make([]byte, 4096)
	deadline := time.Now().Add(patience)
	for {
		// Short, so that a daemon that ends is noticed.
		d.notify.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := d.notify.Read(buf)
		switch {
		case err == nil && strings.Contains(string(buf[:n]), state):
			return
		case err == nil:
			continue
		case !errors.Is(err, os.ErrDeadlineExceeded):
			d.t.Fatal(err)
		}
		select {
		case <-d.ended:
			d.t.Fatalf("the daemon ended with status %d before it said %s:\n%s", d.cmd.ProcessState.ExitCode(), state, d.logged())
		default:
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("the daemon did not say %s in %v:\n%s", state, patience, d.logged())
		}
	}
}

// wait returns the status of the daemon once it has ended.
func (d *daemon) wait() int {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(patience):
		d.t.Fatalf("the daemon does not end:\n%s", d.logged())
	}
	d.cancel()
	return d.cmd.ProcessState.ExitCode()
}

// stop stops the daemon as an administrator does.
func (d *daemon) stop() {
	d.t.Helper()
	d.cmd.Process.Signal(syscall.SIGTERM)
	if status := d.wait(); status != 0 {
		d.t.Errorf("stopping the daemon: status %d:\n%s", status, d.logged())
	}
}

// kill ends the daemon with SIGKILL.
func (d *daemon) kill() {
	d.t.Helper()
	d.cmd.Process.Kill()
	d.wait()
}

// end removes all that the daemon has made, whatever the test left.
func (d *daemon) end() {
	if d.cmd == nil {
		return
	}
	select {
	case <-d.ended:
	default:
		d.kill()
	}
	if _, err := os.Stat(filepath.Join(d.dir, "boxd.db")); err != nil {
		return // it never came so far
	}
	d.credential = nil
	d.launch("--stop-sessions")
	d.awaitNotify("READY=1")
	d.stop()
}

func (d *daemon) logged() string {
	text, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	if len(text) > 20000 {
		text = text[len(text)-20000:]
	}
	return string(text)
}

// says calls boxd and checks status and stdout.
func (d *daemon) says(status int, stdout string, args ...string) {
	d.t.Helper()
	if got := d.run(args...); got.status != status || got.stdout != stdout {
		d.t.Errorf("boxd %q: %v, want status %d, stdout %q", args, got, status, stdout)
	}
}

// refuses starts a daemon that must not start, and checks its status and its last line.
func (d *daemon) refuses(status int, flags []string, parts ...string) {
	d.t.Helper()
	args := append([]string{"serve", "--state-dir", d.dir}, flags...)
	got := d.run(args...)
	lines := strings.Split(strings.TrimSpace(got.stderr), "\n")
	last := lines[len(lines)-1]
	if got.status != status || !strings.HasPrefix(last, "boxd: ") {
		d.t.Errorf("boxd %q: %v, want status %d and a line that says why", args, got, status)
	}
	for _, part := range parts {
		if !strings.Contains(last, part) {
			d.t.Errorf("boxd %q: %q, want %q in it", args, last, part)
		}
	}
}

// field is the value of a field of /proc/<pid>/status.
func (d *daemon) field(name string) string {
	d.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return ""
}
