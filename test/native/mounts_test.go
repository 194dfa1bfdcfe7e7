package native

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// hostDir makes a directory that any user can reach, with an owner.
func hostDir(t *testing.T, uid, gid int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "boxd-test-native-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chown(dir, uid, gid), os.Chmod(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestOwnership: whatever user a box has, its files belong to the owner of the directory, who can change and
// delete them. A real process plays the owner.
func TestOwnership(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	for _, u := range []engine.User{{}, {UID: 1000, GID: 1000}, {UID: 65534, GID: 65534}} {
		for _, owner := range []int{0, 1000, 54321} {
			if testing.Short() && owner != 54321 {
				continue
			}
			dir := hostDir(t, owner, owner)
			b := create(t, e, engine.Spec{User: u, Mounts: []engine.Mount{{Source: dir, Target: engine.WorkspaceTarget}}})
			wantOutput(t, b, `set -e; umask 077; stat -c %u . ; mkdir d; echo x > d/f; ln -s /etc/passwd d/l; ln d/f d/hard; mkfifo d/p; cp /bin/true d/run; chmod 755 d/run; d/run; echo ran`,
				strings.Split(strings.TrimSpace(run(t, b, shell("id -u")).stdout), "\n")[0]+"\nran\n")
			for _, name := range []string{"d", "d/f", "d/l", "d/hard", "d/p"} {
				var st syscall.Stat_t
				if err := syscall.Lstat(filepath.Join(dir, name), &st); err != nil || int(st.Uid) != owner || int(st.Gid) != owner {
					t.Errorf("user %d: %s belongs to %d:%d, %v, want %d", u.UID, name, st.Uid, st.Gid, err, owner)
				}
			}
			rm := exec.CommandContext(t.Context(), "/bin/sh", "-c", `echo more >> "$0/d/f" && rm -r "$0/d"`, dir)
			rm.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(owner), Gid: uint32(owner)}}
			if out, err := rm.CombinedOutput(); err != nil {
				t.Errorf("user %d, owner %d: deleting what the box wrote: %v, %s", u.UID, owner, err, out)
			}
		}
	}
}

// TestForeignFiles: what belongs to neither the owner nor the box is not the
// box's to take.
func TestForeignFiles(t *testing.T) {
	dir := hostDir(t, 12345, 12345)
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("of root\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newBox(t, engine.Spec{Mounts: []engine.Mount{{Source: dir, Target: "/data"}}})
	wantOutput(t, b, "stat -c %u /data/secret; cat /data/secret 2>/dev/null || echo no; chmod 666 /data/secret 2>/dev/null || echo no; chown 0 /data/secret 2>/dev/null || echo no; echo x > /data/mine; chown 5 /data/mine 2>/dev/null || echo no",
		"65534\nno\nno\nno\nno\n")
}

// TestMountOptions: read-only is read-only, set-user-ID has no effect, device
// files are dead, and neither can be changed from inside.
func TestMountOptions(t *testing.T) {
	dir := hostDir(t, 0, 0)
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(file, []byte("content\n"), 0o644), unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))); err != nil {
		t.Fatal(err)
	}
	b := newBox(t, engine.Spec{Mounts: []engine.Mount{
		{Source: dir, Target: "/ro", ReadOnly: true},
		{Source: dir, Target: "/rw"},
		{Source: file, Target: "/opt/deep/file"},
		{Source: file, Target: "/opt/app.conf", ReadOnly: true},
	}})
	wantOutput(t, b, `exec 2>/dev/null
		cat /ro/file /opt/deep/file /opt/app.conf
		echo x > /ro/new || echo no
		echo x >> /ro/file || echo no
		chmod 600 /ro/file || echo no
		echo x >> /opt/app.conf || echo no
		rm /ro/file || echo no
		mount -o remount,rw /ro || echo no
		echo x > /rw/null || echo no
		echo more >> /opt/deep/file; tail -n1 /ro/file
		grep -cE ' /(ro|rw|opt/deep/file|opt/app.conf) [^ ]*nosuid,nodev' /proc/self/mountinfo`,
		"content\ncontent\ncontent\nno\nno\nno\nno\nno\nno\nno\nmore\n4\n")
}

// TestLiveMounts adds and takes away mounts of a running box.
func TestLiveMounts(t *testing.T) {
	b := newBox(t, engine.Spec{})
	dir := hostDir(t, 777, 777)
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(file, []byte("live\n"), 0o644), os.Chown(file, 777, 777)); err != nil {
		t.Fatal(err)
	}
	// A command that runs already sees them come and go.
	out := newScreen()
	c := shell(`echo ready; until test -e /opt/live/file; do sleep 0.02; done; echo x > /opt/live/made; echo come; while test -e /opt/live/file; do sleep 0.02; done; echo gone`)
	c.Stdout = out
	p := begin(t, b, c)
	out.await(t, "ready")
	change := func(c engine.Change) {
		t.Helper()
		if err := b.Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	change(engine.Change{Attach: []engine.Mount{{Source: dir, Target: "/opt/live"}, {Source: file, Target: "/opt/one", ReadOnly: true}}})
	out.await(t, "come")
	var st syscall.Stat_t
	if err := syscall.Stat(dir+"/made", &st); err != nil || st.Uid != 777 {
		t.Errorf("made by the box: %+v, %v", st, err)
	}
	wantOutput(t, b, "cat /opt/one; echo x 2>/dev/null > /opt/one || echo read-only", "live\nread-only\n")
	change(engine.Change{Detach: []string{"/opt/live", "/opt/one"}})
	out.await(t, "gone")
	if r := wait(t, p); r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
	wantOutput(t, b, "ls -A /opt/live; cat /opt/one", "")
	// In one step, at the same place.
	change(engine.Change{Attach: []engine.Mount{{Source: dir, Target: "/opt/live"}}})
	change(engine.Change{Detach: []string{"/opt/live"}, Attach: []engine.Mount{{Source: dir, Target: "/opt/live", ReadOnly: true}}})
	wantOutput(t, b, "cat /opt/live/file; touch /opt/live/x 2>/dev/null || echo read-only", "live\nread-only\n")
	// All or nothing.
	err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: dir, Target: "/opt/good"}, {Source: "/no/such/dir", Target: "/opt/bad"}}})
	if err == nil {
		t.Error("attached what does not exist")
	}
	wantOutput(t, b, "ls -A /opt/good 2>/dev/null; true", "")
	if err := b.Update(t.Context(), engine.Change{Detach: []string{"/usr"}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("detaching what was never attached: %v", err)
	}
}

// TestNestedLiveMounts: outer mounts come before, and go after, those within, in
// whatever order a change lists them; no mount hides another.
func TestNestedLiveMounts(t *testing.T) {
	b := newBox(t, engine.Spec{})
	mount := func(target string) engine.Mount {
		dir := hostDir(t, 0, 0)
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "name"), []byte(target+"\n"), 0o644), os.Mkdir(filepath.Join(dir, "in"), 0o755)); err != nil {
			t.Fatal(err)
		}
		return engine.Mount{Source: dir, Target: target}
	}
	inner, outer := mount("/data/in"), mount("/data")
	for _, c := range []struct {
		name string
		engine.Change
		rule string // why it is refused; empty: it is not
		seen string
	}{
		{"both, the inner one first", engine.Change{Attach: []engine.Mount{inner, outer}}, "", "/data\n/data/in\n"},
		{"the outer one only", engine.Change{Detach: []string{"/data"}}, "within", "/data\n/data/in\n"},
		{"again at the same target", engine.Change{Attach: []engine.Mount{mount("/data/in")}}, "already", "/data\n/data/in\n"},
		{"both, the outer one first", engine.Change{Detach: []string{"/data", "/data/in"}}, "", ""},
		{"the inner one", engine.Change{Attach: []engine.Mount{inner}}, "", "/data/in\n"},
		{"one above", engine.Change{Attach: []engine.Mount{outer}}, "hide", "/data/in\n"},
		{"replaced", engine.Change{Detach: []string{"/data/in"}, Attach: []engine.Mount{outer, inner}}, "", "/data\n/data/in\n"},
		{"with one that is refused", engine.Change{Detach: []string{"/data/in", "/data"}, Attach: []engine.Mount{inner, outer, {Source: "/no/such/dir", Target: "/data/in/x"}}}, "does not exist", "/data\n/data/in\n"},
		{"with one that fails", engine.Change{Detach: []string{"/data/in", "/data"}, Attach: []engine.Mount{inner, outer, {Source: inner.Source, Target: "/data/name"}}}, "director", ""},
	} {
		err := b.Update(t.Context(), c.Change)
		if (err != nil) != (c.rule != "") || err != nil && !strings.Contains(err.Error(), c.rule) {
			t.Errorf("%s: %v, want %q", c.name, err, c.rule)
		}
		if c.rule != "" && !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: %v is no invalid field", c.name, err)
		}
		wantOutput(t, b, "cat /data/name /data/in/name 2>/dev/null; true", c.seen)
	}
}

// TestBadMounts: each is refused with one line that names field, value and rule,
// for a new box and for a running one, and nothing is left of the attempt.
func TestBadMounts(t *testing.T) {
	testutil.Long(t)
	state := stateDir(t)
	e := startIn(t, state)
	good := hostDir(t, 0, 0)
	socket := filepath.Join(good, "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	links := map[string]string{"to-etc": "/etc", "to-root": "/", "to-proc": "/proc", "to-state": state, "loop": "loop"}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(good, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(unix.Mkfifo(good+"/fifo", 0o600), unix.Mknod(good+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), os.WriteFile(good+"/file", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	b := create(t, e, engine.Spec{})
	// The box's own root makes symlinks where it can.
	wantOutput(t, b, "ln -s /etc /tmp/link; ln -s / $HOME/root; ln -s /tmp/link/x /tmp/deep; echo ok", "ok\n")
	type row struct{ source, target string }
	var rows []row
	for _, source := range []string{"", "relative", "./x", "/no/such/dir", "/etc/passwd/x", "/", "//", "/etc", "/etc/ssl", "/etc/passwd", "/proc", "/proc/self/root", "/proc/self/fd", "/proc/self/cwd",
		"/sys", "/sys/fs/cgroup", "/dev", "/dev/null", "/dev/shm", "/root", "/boot", "/run", state, filepath.Join(state, "lock"), socket, good + "/fifo", good + "/null",
		good + "/to-etc", good + "/to-root", good + "/to-proc", good + "/to-state", good + "/to-etc/../etc", good + "/loop", good + "/x\x00y", good + "/new\nline"} {
		if _, err := os.Stat("/boot"); err != nil && source == "/boot" {
			continue
		}
		rows = append(rows, row{source, "/data"})
	}
	for _, target := range []string{"", "data", "/", "//", "/..", "/../x", "/data/..", "/data/../../x", "/a//b", "/a/", "/./a", "/proc", "/proc/1", "/proc/sys/kernel", "/dev", "/dev/null", "/sys", "/etc", "/a\x00b"} {
		rows = append(rows, row{good, target})
	}
	for _, r := range rows {
		m := []engine.Mount{{Source: r.source, Target: r.target}}
		second, err := e.Create(t.Context(), engine.Spec{Mounts: m})
		wantBadMount(t, r.source, r.target, err)
		if err == nil {
			remove(t, second)
		}
		wantBadMount(t, r.source, r.target, b.Update(t.Context(), engine.Change{Attach: m}))
	}
	for _, target := range []string{"/tmp/link", "/tmp/link/x", "/home/box/root/opt", "/tmp/deep", "/bin", "/bin/sh", "/usr/nosuch", "/usr/bin/env/x", "/var/run/x"} {
		wantBadMount(t, good, target, b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: good, Target: target}}}))
	}
	wantBadMount(t, good, "/usr/bin/env", b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: good, Target: "/usr/bin/env"}}}))
	wantBadMount(t, good+"/file", "/opt", b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: good + "/file", Target: "/opt"}}}))
	if o := run(t, b, shell("cat /proc/self/mountinfo")); strings.Contains(o.stdout, filepath.Base(good)) {
		t.Errorf("something was mounted after all: %s", o.stdout)
	}
	for _, d := range []string{"/etc/x", "/opt/x", "/x", "/data"} {
		if _, err := os.Lstat(d); err == nil && d != "/data" {
			t.Errorf("%s was made on the host", d)
		}
	}
}

func wantBadMount(t *testing.T, source, target string, err error) {
	t.Helper()
	var bad *engine.FieldError
	if !errors.As(err, &bad) || strings.ContainsAny(err.Error(), "\n\x00") || len(err.Error()) > 500 {
		t.Errorf("mounting %q at %q: %v, want one line that names field, value and rule", source, target, err)
	}
}

// TestMountWithin: the launcher keeps a source within its directory, even if the path has changed since it was
// checked; in the spec, and in a running box.
func TestMountWithin(t *testing.T) {
	e := start(t)
	root, outside := hostDir(t, 0, 0), hostDir(t, 0, 0)
	if err := errors.Join(os.Mkdir(root+"/dir", 0o755), os.Symlink(outside, root+"/out"), os.Symlink("../"+filepath.Base(outside), root+"/up")); err != nil {
		t.Fatal(err)
	}
	b := create(t, e, engine.Spec{Mounts: []engine.Mount{{Source: root + "/dir", Target: "/in", Within: root}}})
	wantOutput(t, b, "touch /in/file && ls /in", "file\n")
	for _, name := range []string{"/out", "/up", "/dir/../..", "/../" + filepath.Base(outside)} {
		m := engine.Mount{Source: root + name, Target: "/data", Within: root}
		_, err := e.Create(t.Context(), engine.Spec{Mounts: []engine.Mount{m}})
		for how, err := range map[string]error{"create": err, "attach": b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}})} {
			if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), root) || !strings.Contains(err.Error(), "leaves the directory") {
				t.Errorf("%s %s: %v", how, name, err)
			}
		}
	}
}
