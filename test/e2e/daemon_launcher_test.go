package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// As under systemd: the launcher is a unit of its own, and the daemon never root.
func TestDaemonBesideLauncher(t *testing.T) {
	d := newDaemon(t)
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(d.dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	runtime := filepath.Join(filepath.Dir(d.dir), "run")
	launcher := d.startLauncher(runtime)
	d.credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	d.flags = []string{"--runtime-dir", runtime}
	d.start()
	d.says(0, "", "start", "s", "--id", "p", "--", "cat")
	d.says(0, "one\n", "exec", "s", "--", "echo", "one")
	launcher.kill()
	d.says(0, "two\n", "exec", "s", "--", "echo", "two") // no launcher is on the way of a command
	launcher = d.startLauncher(runtime)
	d.says(0, "three\n", "exec", "other", "--", "echo", "three")
	d.stdin = strings.NewReader("four\n")
	d.says(0, "four\n", "attach", "s", "p")
	for _, session := range []string{"s", "other"} {
		d.says(0, "", "sessions", "rm", session)
	}
	d.stop()
	if launcher.ended() {
		t.Error("the daemon has ended a launcher that it did not start")
	}
	d.cmd = nil // nothing is left to clean up but the launcher
	launcher.terminate()
}

// TestRootsOfTheLauncher: a daemon that root did not start is held by the roots that root
// has named for the launcher, whatever its own configuration allows.
func TestRootsOfTheLauncher(t *testing.T) {
	d := newDaemon(t)
	shared := filepath.Join(filepath.Dir(d.dir), "shared")
	for _, err := range []error{
		os.Mkdir(d.dir, 0o700), os.Chown(d.dir, 65534, 65534),
		os.MkdirAll(filepath.Join(shared, "dir"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	runtime := filepath.Join(filepath.Dir(d.dir), "run")
	launcher := d.startLauncher(runtime)
	d.credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	d.flags = []string{"--runtime-dir", runtime, "--allow-mount-root", shared}
	d.start()
	d.says(0, "", "exec", "own", "--", "touch", "file") // its own workspaces need no root
	write := []string{"exec", "s", "--workspace", filepath.Join(shared, "dir"), "--", "touch", "file"}
	d.wantRefused(125, d.run(write...), shared+"/dir", "outside of the launcher's mount roots: root names them in /etc/boxd/launcher.yaml or with --mount-root")
	for _, restricted := range []struct{ option, rule string }{{":ro", "read-only"}, {":no-root-owned", "belongs to root"}} {
		launcher.terminate()
		launcher = d.startLauncher(runtime, "--mount-root", shared+restricted.option)
		d.wantRefused(125, d.run(write...), shared+"/dir", restricted.rule)
	}
	launcher.terminate()
	launcher = d.startLauncher(runtime, "--mount-root", shared)
	d.says(0, "", write...)
	if _, err := os.Stat(filepath.Join(shared, "dir/file")); err != nil {
		t.Error(err)
	}
	for _, session := range []string{"s", "own"} {
		d.says(0, "", "sessions", "rm", session)
	}
	d.stop()
	d.cmd = nil
	launcher.terminate()
}

// launcher is a launcher service that is no child of the daemon.
type launcher struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
}

// startLauncher starts one that is ready when it returns.
func (d *daemon) startLauncher(runtime string, args ...string) *launcher {
	d.t.Helper()
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	l := &launcher{t: d.t, cmd: exec.Command(d.init, append([]string{"launcher", "--service", "--state-dir", runtime, "--client", "nobody", "--workspaces", filepath.Join(d.dir, "workspaces")}, args...)...), done: make(chan struct{})}
	l.cmd.Env = append(d.env, "NOTIFY_SOCKET="+d.notify.LocalAddr().String())
	l.cmd.Stdout, l.cmd.Stderr = log, log
	if err := l.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() {
		defer close(l.done)
		_ = l.cmd.Wait() // its state says it
	}()
	d.t.Cleanup(func() { l.kill() })
	ready := d.ended
	d.ended = l.done // who is waited for
	d.awaitNotify("READY=1")
	d.ended = ready
	return l
}

func (l *launcher) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (l *launcher) kill() {
	l.cmd.Process.Kill()
	<-l.done
}

// terminate stops it as systemd does.
func (l *launcher) terminate() {
	l.t.Helper()
	l.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-l.done:
	case <-time.After(patience):
		l.t.Fatal("the launcher does not end")
	}
	if status := l.cmd.ProcessState.ExitCode(); status != 0 {
		l.t.Errorf("launcher: status %d", status)
	}
}
