package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// servingUser is whom a daemon that was started as root serves as.
func servingUser(t *testing.T) (uid, gid int) {
	u, err := user.Lookup("boxd")
	if err != nil {
		return 65534, 65534
	}
	uid, _ = strconv.Atoi(u.Uid)
	gid, _ = strconv.Atoi(u.Gid)
	return uid, gid
}

func TestDaemonIsNotRoot(t *testing.T) {
	d := startDaemon(t)
	uid, gid := servingUser(t)
	for name, want := range map[string]string{
		"Uid": fmt.Sprintf("%d %d %d %d", uid, uid, uid, uid), "Gid": fmt.Sprintf("%d %d %d %d", gid, gid, gid, gid),
		"Groups": fmt.Sprint(gid), "NoNewPrivs": "1", "CapInh": "0000000000000000", "CapPrm": "0000000000000000",
		"CapEff": "0000000000000000", "CapAmb": "0000000000000000",
	} {
		if got := d.field(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if _, err := user.Lookup("boxd"); err != nil && !strings.Contains(d.logged(), "serving as nobody, which is for development only") {
		t.Errorf("nothing is said about the missing user:\n%s", d.logged())
	}
	for name, want := range map[string]struct {
		mode     fs.FileMode
		uid, gid int
	}{
		".": {fs.ModeDir | fs.ModeSticky | 0o771, 0, gid}, "run": {fs.ModeDir | 0o711, 0, 0},
		"boxd.sock": {fs.ModeSocket | 0o660, 0, gid}, "boxd.db": {0o600, uid, gid}, "audit.log": {0o600, uid, gid}, "daemon.lock": {0o600, uid, gid},
	} {
		info, err := os.Lstat(filepath.Join(d.dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		st := info.Sys().(*syscall.Stat_t)
		if info.Mode() != want.mode || int(st.Uid) != want.uid || int(st.Gid) != want.gid {
			t.Errorf("%s: %v %d:%d, want %v %d:%d", name, info.Mode(), st.Uid, st.Gid, want.mode, want.uid, want.gid)
		}
	}
	// Not dumpable: /proc/<pid> belongs to root.
	if info, err := os.Stat(fmt.Sprintf("/proc/%d/environ", d.cmd.Process.Pid)); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the daemon can be looked into: %v, %v", info, err)
	}
}

func TestDaemonKeepsState(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "", "exec", "s", "--", "sh", "-c", "echo kept > file")
	d.says(0, "kept\n", "exec", "s", "--", "cat", "file")
	d.says(3, "out", "exec", "s", "--", "sh", "-c", "printf out; exit 3")
	d.says(127, "", "exec", "s", "--", "nosuchprogram")
	d.says(124, "", "exec", "s", "--timeout", "200ms", "--", "sleep", "60")
	d.says(143, "", "exec", "s", "--shell", "--", "kill -TERM $$")
	d.says(125, "", "exec", "s", "--memory", "1G", "--", "true") // it has another one
	d.stdin = strings.NewReader("b\na\n")
	d.says(0, "a\nb\n", "exec", "s", "-i", "--", "sort")
	d.stop()
	d.start()
	d.says(0, "kept\n", "exec", "s", "--no-create", "--", "cat", "file")
	d.says(0, "", "sessions", "rm", "s")
	d.says(125, "", "exec", "s", "--no-create", "--", "cat", "file")
	if status := d.run("status"); status.status != 0 || !strings.Contains(status.stdout, "yes") {
		t.Errorf("%v", status)
	}
}

// What a managed process says reaches a client that was attached when the daemon
// died, byte for byte.
func TestDaemonKilled(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "", "start", "s", "--id", "p", "--", "sh", "-c", `echo pid $$; while read -r line; do echo "got $line"; done; exit 9`)
	p := d.openPTY(24, 80, "attach", "s", "p")
	p.await("pid ")
	p.send("one\n")
	p.await("got one")
	for i, end := range []func(){d.kill, d.stop, d.kill} {
		end()
		p.await("connection lost")
		d.start()
		p.send(fmt.Sprintf("round %d\n", i))
		p.await(fmt.Sprintf("got round %d", i))
	}
	p.send("\x04")
	if status := p.wait(); status != 9 {
		t.Errorf("status %d, want 9; %q", status, p.text.String())
	}
	got := d.run("logs", "s", "p")
	_, lines, _ := strings.Cut(got.stdout, "\n")
	if want := "got one\ngot round 0\ngot round 1\ngot round 2\n"; got.status != 0 || lines != want {
		t.Errorf("%v, want %q behind the pid", got, want)
	}
}

// A stop waits for commands, and not after a second signal.
func TestDaemonStopIsBounded(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "", "exec", "s", "--", "true")
	quick := d.openPTY(24, 80, "exec", "s", "--", "sh", "-c", "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo done")
	quick.await("begun")
	d.cmd.Process.Signal(syscall.SIGTERM)
	d.awaitNotify("STOPPING=1")
	box := d.workspace("s")
	if err := os.WriteFile(filepath.Join(box, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	quick.await("done")
	if status := quick.wait(); status != 0 {
		t.Errorf("a command under way: status %d, %q", status, quick.text.String())
	}
	if status := d.wait(); status != 0 {
		t.Errorf("status %d", status)
	}
	d.start()
	slow := d.openPTY(24, 80, "exec", "s", "--", "sh", "-c", "echo begun; exec sleep 3600")
	slow.await("begun")
	d.cmd.Process.Signal(syscall.SIGTERM)
	d.awaitNotify("STOPPING=1")
	d.stop()
	if status := slow.wait(); status == 0 {
		t.Errorf("a command that was cut off: status %d, %q", status, slow.text.String())
	}
}

// workspace is the directory on the host that the session's box has at /workspace.
func (d *daemon) workspace(session string) string {
	d.t.Helper()
	var dir string
	err := filepath.WalkDir(filepath.Join(d.dir, "workspaces"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && filepath.Base(path) == session {
			dir = path
		}
		return err
	})
	if err != nil || dir == "" {
		d.t.Fatalf("workspace of %q: %q, %v", session, dir, err)
	}
	return dir
}

func TestSecondDaemonIsRefused(t *testing.T) {
	d := startDaemon(t)
	d.refuses(nil, d.dir, "in use by process "+strconv.Itoa(d.cmd.Process.Pid))
	d.says(0, "still\n", "exec", "s", "--", "echo", "still")
	// Another state directory, the same socket.
	other := *d
	other.dir += "2"
	other.refuses([]string{"--socket", d.socket()}, d.socket(), "is that of a server which is running")
	d.says(0, "still\n", "exec", "s", "--", "echo", "still")
}

func TestDaemonStopsSessions(t *testing.T) {
	d := startDaemon(t, "--stop-sessions")
	d.says(0, "", "start", "s", "--id", "p", "--", "sleep", "3600")
	d.stop()
	d.flags = nil
	d.start()
	d.says(0, `{"sessions":[]}`+"\n", "sessions", "ls", "--json")
}

func TestDaemonRefusesToStart(t *testing.T) {
	d := newDaemon(t)
	dir := t.TempDir()
	open := filepath.Join(dir, "tokens")
	if err := os.WriteFile(open, []byte("0123456789abcdef0123456789 default viewer\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte("state_dir: /x\nno_such_key: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags []string
		parts []string
	}{
		{[]string{"--listen", "0.0.0.0:0"}, []string{"needs authentication", "tokens_file"}},
		{[]string{"--listen", "[::]:0"}, []string{"needs authentication"}},
		{[]string{"--tokens-file", open}, []string{open, "must not be accessible to others"}},
		{[]string{"--tokens-file", "/no/such"}, []string{"/no/such"}},
		{[]string{"--user", "root"}, []string{"root"}},
		{[]string{"--user", "no-such-user"}, []string{"no-such-user"}},
		{[]string{"--socket-group", "no-such-group"}, []string{"no-such-group"}},
		{[]string{"--log-format", "xml"}, []string{"xml"}},
		{[]string{"--config", file}, []string{"no_such_key"}},
		{[]string{"--socket", "/tmp/" + strings.Repeat("x", 120)}, []string{"at most"}},
		{[]string{"--init", "/no/init"}, []string{"/no/init"}},
	} {
		d.refuses(c.flags, c.parts...)
	}
}

// What lies in the state directory, which is the daemon's, is no trap for root.
func TestStateDirIsNoTrap(t *testing.T) {
	d := newDaemon(t)
	uid, gid := servingUser(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(d.dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"daemon.lock", "boxd.sock"} {
		path := filepath.Join(d.dir, name)
		if err := os.Symlink(victim, path); err != nil {
			t.Fatal(err)
		}
		d.refuses(nil)
		if text, err := os.ReadFile(victim); err != nil || string(text) != "keep" {
			t.Errorf("%s: the victim is %q, %v", name, text, err)
		}
		os.Remove(path)
	}
	// A runtime directory that is not root's is not used.
	run := filepath.Join(d.dir, "run")
	if err := os.RemoveAll(run); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(run, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(run, uid, gid); err != nil {
		t.Fatal(err)
	}
	d.refuses(nil, run, "must belong to root")
}

func TestDaemonReloadsTokens(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		_, gid := servingUser(t)
		if err := os.WriteFile(tokens, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(tokens, 0, gid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(tokens), 0o755); err != nil {
		t.Fatal(err)
	}
	os.Chmod(filepath.Dir(filepath.Dir(tokens)), 0o755)
	write("first-0123456789abcdef0123456789 t1 operator\n")
	d := startDaemon(t, "--listen", "127.0.0.1:0", "--tokens-file", tokens, "--log-format", "json")
	url := "http://" + d.address("tcp")
	ask := func(token string, args ...string) result {
		t.Helper()
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return d.run(append(args, "--url", url, "--token-file", file)...)
	}
	if got := ask("first-0123456789abcdef0123456789", "sessions", "ls"); got.status != 0 {
		t.Errorf("operator: %v", got)
	}
	d.wantRefused(125, ask("wrong-0123456789abcdef0123456789", "sessions", "ls"), "not known")
	d.wantRefused(125, d.run("sessions", "ls", "--url", url), "not known")
	write("second-0123456789abcdef0123456789 t1 viewer\n")
	d.cmd.Process.Signal(syscall.SIGHUP)
	d.awaitNotify("RELOADING=1")
	d.awaitNotify("READY=1")
	d.wantRefused(125, ask("first-0123456789abcdef0123456789", "sessions", "ls"), "not known")
	if got := ask("second-0123456789abcdef0123456789", "sessions", "ls"); got.status != 0 {
		t.Errorf("viewer: %v", got)
	}
	d.wantRefused(125, ask("second-0123456789abcdef0123456789", "sessions", "rm", "s"), "viewer")
	write("nonsense\n")
	d.cmd.Process.Signal(syscall.SIGHUP)
	d.awaitNotify("RELOADING=1")
	d.awaitNotify("READY=1")
	if got := ask("second-0123456789abcdef0123456789", "sessions", "ls"); got.status != 0 {
		t.Errorf("after a bad file: %v", got)
	}
	write("third-0123456789abcdef0123456789 t1 viewer\n") // for the clean-up
}

// address is where the daemon listens, of its log in JSON.
func (d *daemon) address(network string) string {
	d.t.Helper()
	for line := range strings.Lines(d.logged()) {
		var entry struct{ Msg, Network, Address string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" && entry.Network == network {
			return entry.Address
		}
	}
	d.t.Fatalf("it listens nowhere on %s:\n%s", network, d.logged())
	return ""
}

// A daemon that is not root says what it needs.
func TestDaemonWithoutLauncher(t *testing.T) {
	d := newDaemon(t)
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(d.dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	d.credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	d.launch()
	if status := d.wait(); status != 125 || !strings.Contains(d.logged(), "start boxd-launcher.service, or start boxd serve as root") {
		t.Errorf("status %d:\n%s", status, d.logged())
	}
	d.cmd = nil
}

func TestSocketActivation(t *testing.T) {
	d := newDaemon(t)
	path := filepath.Join(filepath.Dir(d.dir), "activated")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as systemd's, it outlives the daemon
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	defer file.Close()
	// systemd's protocol, sd_listen_fds(3): descriptor 3, and the pid it is for.
	script := filepath.Join(filepath.Dir(d.dir), "activate")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nLISTEN_FDS=1 LISTEN_PID=$$ exec "+d.boxd+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	boxd := d.boxd
	d.boxd, d.extra = script, []*os.File{file}
	d.start()
	d.boxd, d.extra = boxd, nil
	if _, err := os.Lstat(d.socket()); err == nil {
		t.Error("it has opened a socket of its own as well")
	}
	d.says(0, "hello\n", "exec", "s", "--socket", path, "--", "echo", "hello")
	d.stop()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the service manager's socket is gone: %v", err)
	}
}

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

// launcher is a launcher service that is no child of the daemon.
type launcher struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
}

// startLauncher starts one that is ready when it returns.
func (d *daemon) startLauncher(runtime string) *launcher {
	d.t.Helper()
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	l := &launcher{t: d.t, cmd: exec.Command(d.init, "launcher", "--service", "--state-dir", runtime, "--client", "nobody"), done: make(chan struct{})}
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
