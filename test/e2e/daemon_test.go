package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// ownID is the user of daemons on a host without a user boxd: newDaemon gives the state
// directory to it.
const ownID = 0x7fff1234

// servingUser returns the user that a daemon started as root serves as.
func servingUser(t *testing.T) (uid, gid int) {
	u, err := user.Lookup("boxd")
	if err != nil {
		return ownID, ownID
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
		"Groups": fmt.Sprint(gid), "NoNewPrivs": "1", "Seccomp": "2", "CapInh": "0000000000000000", "CapPrm": "0000000000000000",
		"CapEff": "0000000000000000", "CapAmb": "0000000000000000",
	} {
		if got := d.field(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]struct {
		mode     fs.FileMode
		uid, gid int
	}{
		".": {fs.ModeDir | fs.ModeSticky | 0o771, 0, gid}, "run": {fs.ModeDir | 0o711, 0, 0},
		"boxd.sock": {fs.ModeSocket | 0o660, 0, gid}, "boxd.db": {0o600, uid, gid}, "audit.log": {0o600, uid, gid}, "daemon.lock": {0o600, uid, gid},
		"history/history.db": {0o600, uid, gid},
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

// Without a user boxd, the daemon has an ID that nothing else has, and keeps it, so that its files remain
// its own. A state directory of nobody is refused, with what to do.
func TestDaemonHasItsOwnID(t *testing.T) {
	if _, err := user.Lookup("boxd"); err == nil {
		t.Skip("there is a user boxd") // then it serves as that
	}
	d := newDaemon(t)
	if err := os.Chown(d.dir, 0, 0); err != nil {
		t.Fatal(err)
	}
	d.start()
	uid := d.field("Uid")
	for _, end := range []func(){d.kill, d.stop} {
		d.says(0, "kept\n", "exec", "s", "--", "sh", "-c", "echo kept >> file; tail -n 1 file")
		end()
		d.start()
		if again := d.field("Uid"); again != uid {
			t.Errorf("user %q, and before it was %q", again, uid)
		}
	}
	id, err := strconv.Atoi(strings.Fields(uid)[0])
	if err != nil || id < 0x7fff0000 || id > 0x7ffffffe {
		t.Errorf("user %d, %v: not above those of boxes", id, err)
	}
	if _, err := user.LookupId(strconv.Itoa(id)); err == nil {
		t.Errorf("user %d is in the user database", id)
	}
	d.stop()
	lock := filepath.Join(d.dir, "daemon.lock")
	if err := os.Chown(lock, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	d.refuses(125, nil, "belongs to a daemon of user 65534", fmt.Sprintf("chown -hR --from=65534:65534 %d:%d %s", id, id, d.dir))
	if err := os.Chown(lock, id, id); err != nil {
		t.Fatal(err)
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
	d.refuses(125, nil, d.dir, "in use by process "+strconv.Itoa(d.cmd.Process.Pid))
	d.says(0, "still\n", "exec", "s", "--", "echo", "still")
	// Another state directory, the same socket.
	other := *d
	other.dir += "2"
	other.refuses(125, []string{"--socket", d.socket()}, d.socket(), "belongs to a server that is running")
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
