package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	boxddaemon "github.com/boxd/boxd/test/daemon"
)

// As under systemd: the launcher is a unit of its own, and the daemon never root.
func TestDaemonBesideLauncher(t *testing.T) {
	d := newDaemon(t)
	if err := os.Chown(d.dir, ownID, ownID); err != nil {
		t.Fatal(err)
	}
	runtime := filepath.Join(filepath.Dir(d.dir), "run")
	launcher := d.startLauncher(runtime)
	d.credential, d.unit = &syscall.Credential{Uid: ownID, Gid: ownID}, makeUnit(t)
	d.flags = []string{"--runtime-dir", runtime}
	d.start()
	if said := askLauncher(t, filepath.Join(runtime, "launcher.sock"), d.credential); !strings.Contains(said, "run boxd serve as "+unit) {
		t.Errorf("a process of the daemon's user outside of its unit was told %q", said)
	}
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

// unit is the systemd unit of daemons that are not started as root.
const unit = "boxd-e2e.service"

// makeUnit makes the cgroup of unit, as systemd does for a service.
func makeUnit(t *testing.T) *os.File {
	t.Helper()
	root := "/sys/fs/cgroup/unified"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	path := filepath.Join(root, unit)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	})
	return f
}

// The launcher refuses other processes of the daemon's user: beside a daemon that root has started, while
// that daemon is dead, and beside a systemd unit. After either of the two was killed, it serves the
// daemon again.
func TestLauncherServesOneProcess(t *testing.T) {
	d := startDaemon(t)
	uid, gid := servingUser(t)
	runtime := filepath.Join(d.dir, "run")
	stranger := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	refused := func(when string) {
		t.Helper()
		if said := askLauncher(t, filepath.Join(runtime, "launcher.sock"), stranger); !strings.Contains(said, "this launcher serves one process of that user") {
			t.Errorf("%s: another process of the daemon's user was told %q", when, said)
		}
	}
	d.says(0, "one\n", "exec", "s", "--", "echo", "one")
	refused("beside the daemon")
	d.kill()
	refused("while there is no daemon")
	d.start()
	d.says(0, "two\n", "exec", "s", "--", "echo", "two")
	parts := boxddaemon.Daemon{Config: boxddaemon.Config{Runtime: runtime}}
	for _, pid := range parts.Find(boxddaemon.Launcher) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	d.says(0, "three\n", "exec", "other", "--", "echo", "three")
	refused("after a restart of the launcher")
}

// askLauncher connects to the launcher as a process of some user, asks for the boxes, and
// returns the refusal, or what else came.
func askLauncher(t *testing.T, socket string, who *syscall.Credential) string {
	t.Helper()
	var fd int
	// The thread alone becomes that user. The process is this one, which root has not named.
	err := linux.OnThrowawayThread(func() (err error) {
		for _, call := range []struct {
			trap uintptr
			id   uint32
		}{{syscall.SYS_SETRESGID, who.Gid}, {syscall.SYS_SETRESUID, who.Uid}} {
			if _, _, errno := syscall.RawSyscall(call.trap, uintptr(call.id), uintptr(call.id), uintptr(call.id)); errno != 0 {
				return errno
			}
		}
		if fd, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket})
	})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := wire.FileConn(os.NewFile(uintptr(fd), "launcher"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.Send(rpc.TypeList, 1, []byte("{}")) // it may have hung up already
	frame, err := conn.Receive()
	if err != nil {
		return "nothing: " + err.Error()
	}
	defer frame.Close()
	var h rpc.Hello
	if err := json.Unmarshal(frame.Body, &h); err != nil || frame.Type != rpc.TypeHello || h.PID != 0 || h.ClientUID != 0 || h.DataDir != "" {
		return fmt.Sprintf("more than a refusal: type %d, %s", frame.Type, frame.Body)
	}
	if more, err := conn.Receive(); err == nil {
		return fmt.Sprintf("more: type %d, %s", more.Type, more.Body)
	}
	return h.Error
}

// TestRootsOfTheLauncher: a daemon that root did not start is held by the roots that root
// has named for the launcher, whatever its own configuration allows.
func TestRootsOfTheLauncher(t *testing.T) {
	d := newDaemon(t)
	shared := filepath.Join(filepath.Dir(d.dir), "shared")
	for _, err := range []error{
		os.Chown(d.dir, ownID, ownID),
		os.MkdirAll(filepath.Join(shared, "dir"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	runtime := filepath.Join(filepath.Dir(d.dir), "run")
	launcher := d.startLauncher(runtime)
	d.credential, d.unit = &syscall.Credential{Uid: ownID, Gid: ownID}, makeUnit(t)
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
	l := &launcher{t: d.t, cmd: exec.Command(d.init, append([]string{"launcher", "--service", "--state-dir", runtime, "--client", strconv.Itoa(ownID), "--client-unit", unit,
		"--workspaces", filepath.Join(d.dir, "workspaces")}, args...)...), done: make(chan struct{})}
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
