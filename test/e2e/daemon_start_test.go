package e2e

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

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
	const config = 78 // what is wrong without a look at the host: systemd does not try again
	for _, c := range []struct {
		status int
		flags  []string
		parts  []string
	}{
		{config, []string{"--listen", "0.0.0.0:0"}, []string{"needs authentication", "tokens_file"}},
		{config, []string{"--listen", "[::]:0"}, []string{"needs authentication"}},
		{125, []string{"--tokens-file", open}, []string{open, "must not be accessible to others"}},
		{125, []string{"--tokens-file", "/no/such"}, []string{"/no/such"}},
		{125, []string{"--state-dir", "/run/boxd-e2e-refused"}, []string{"/run/boxd-e2e-refused", "nothing there is ever mounted"}},
		{125, []string{"--user", "root"}, []string{"root"}},
		{125, []string{"--user", "nobody"}, []string{"must not be nobody"}},
		{125, []string{"--user", "no-such-user"}, []string{"no-such-user"}},
		{125, []string{"--socket-group", "no-such-group"}, []string{"no-such-group"}},
		{125, []string{"--listen-user", "no-such-user"}, []string{"--listen-user", "no-such-user", "must be a user of this host"}},
		{125, []string{"--listen-user", "65534"}, []string{"--listen-user", "65534"}},
		{config, []string{"--listen-user", "a b"}, []string{"--listen-user", "a b"}},
		{config, []string{"--log-format", "xml"}, []string{"xml"}},
		{config, []string{"--config", file}, []string{"no_such_key"}},
		{config, []string{"--socket", "/tmp/" + strings.Repeat("x", 120)}, []string{"at most"}},
		{125, []string{"--init", "/no/init"}, []string{"/no/init"}},
	} {
		d.refuses(c.status, c.flags, c.parts...)
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
	for _, name := range []string{"daemon.lock", "boxd.sock"} {
		path := filepath.Join(d.dir, name)
		if err := errors.Join(os.Symlink(victim, path), os.Lchown(path, uid, gid)); err != nil {
			t.Fatal(err)
		}
		d.refuses(125, nil)
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
	d.refuses(125, nil, run, "must belong to root")
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
	d.wantRefused(125, ask("wrong-0123456789abcdef0123456789", "sessions", "ls"), "unknown bearer token")
	d.wantRefused(125, d.run("sessions", "ls", "--url", url), "no credentials")
	write("second-0123456789abcdef0123456789 t1 viewer\n")
	d.cmd.Process.Signal(syscall.SIGHUP)
	d.awaitNotify("RELOADING=1")
	d.awaitNotify("READY=1")
	d.wantRefused(125, ask("first-0123456789abcdef0123456789", "sessions", "ls"), "unknown bearer token")
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

// Confined to its files, the daemon reads a tokens file again that was put in the place of
// the one it knew, and one line says what to do about a file elsewhere.
func TestDaemonReloadsConfined(t *testing.T) {
	dir := t.TempDir()
	for path := dir; path != "/tmp" && path != "/"; path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_, gid := servingUser(t)
	write := func(path, text string) {
		t.Helper()
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+".new", []byte(text), 0o640),
			os.Chown(path+".new", 0, gid), os.Rename(path+".new", path))
		if err != nil {
			t.Fatal(err)
		}
	}
	config, tokens, other := dir+"/conf/config.yaml", dir+"/tokens/file", dir+"/other/file"
	write(tokens, "first-0123456789abcdef0123456789 t1 operator\n")
	write(other, "other-0123456789abcdef0123456789 t1 operator\n")
	write(config, "tokens_file: "+tokens+"\nlisten: 127.0.0.1:0\nlog: {format: json}\n")
	d := newDaemon(t, "--config", config)
	d.start()
	url := "http://" + d.address("tcp")
	reload := func() {
		t.Helper()
		d.cmd.Process.Signal(syscall.SIGHUP)
		d.awaitNotify("RELOADING=1")
		d.awaitNotify("READY=1")
	}
	ask := func(token string) int {
		t.Helper()
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return d.run("sessions", "ls", "--url", url, "--token-file", file).status
	}
	write(tokens, "second-0123456789abcdef0123456789 t1 operator\n")
	reload()
	if first, second := ask("first-0123456789abcdef0123456789"), ask("second-0123456789abcdef0123456789"); first != 125 || second != 0 {
		t.Errorf("after another file took the place of the tokens file: %d, %d, want 125, 0\n%s", first, second, d.logged())
	}
	write(config, "tokens_file: "+other+"\nlisten: 127.0.0.1:0\nlog: {format: json}\n")
	reload()
	if second, third := ask("second-0123456789abcdef0123456789"), ask("other-0123456789abcdef0123456789"); second != 0 || third != 125 {
		t.Errorf("after the configuration named another file: %d, %d, want 0, 125", second, third)
	}
	if !strings.Contains(d.logged(), "restart boxd") {
		t.Errorf("nothing says what to do:\n%s", d.logged())
	}
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

// A daemon that is not root reports what it needs.
func TestDaemonWithoutLauncher(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	if err := os.Chown(d.dir, ownID, ownID); err != nil {
		t.Fatal(err)
	}
	d.credential = &syscall.Credential{Uid: ownID, Gid: ownID}
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
