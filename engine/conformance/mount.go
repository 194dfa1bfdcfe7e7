package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/boxtest"
	"golang.org/x/sys/unix"
)

// ownership: whatever user a box has, its files belong to the owner of the directory, who can change and
// delete them. A real process plays the owner.
func (e *suite) ownership(t testing.TB) {
	for _, u := range []engine.User{{}, {UID: 1000, GID: 1000}, {UID: 65534, GID: 65534}} {
		for _, owner := range []int{0, 1000, 54321} {
			if testing.Short() && owner != 54321 {
				continue
			}
			dir := boxtest.HostDir(t, owner, owner)
			b := e.create(t, engine.Spec{User: u, Mounts: []engine.Mount{{Source: dir, Target: engine.WorkspaceTarget}}})
			boxtest.WantOutput(t, b, `set -e; umask 077; stat -c %u . ; mkdir d; echo x > d/f; ln -s /etc/passwd d/l; ln d/f d/hard; mkfifo d/p; cp /bin/true d/run; chmod 755 d/run; d/run; echo ran`,
				strings.Split(strings.TrimSpace(boxtest.Run(t, b, boxtest.Shell("id -u")).Stdout), "\n")[0]+"\nran\n")
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

// foreignFiles: what belongs to neither the owner nor the box is not the
// box's to take.
func (e *suite) foreignFiles(t testing.TB) {
	dir := boxtest.HostDir(t, 12345, 12345)
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("of root\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := e.create(t, engine.Spec{Mounts: []engine.Mount{{Source: dir, Target: "/data"}}})
	boxtest.WantOutput(t, b, "stat -c %u /data/secret; cat /data/secret 2>/dev/null || echo no; chmod 666 /data/secret 2>/dev/null || echo no; chown 0 /data/secret 2>/dev/null || echo no; echo x > /data/mine; chown 5 /data/mine 2>/dev/null || echo no",
		"65534\nno\nno\nno\nno\n")
}

// mountOptions: read-only is read-only, set-user-ID has no effect, device
// files are dead, and neither can be changed from inside.
func (e *suite) mountOptions(t testing.TB) {
	dir := boxtest.HostDir(t, 0, 0)
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(file, []byte("content\n"), 0o644), unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))); err != nil {
		t.Fatal(err)
	}
	b := e.create(t, engine.Spec{Mounts: []engine.Mount{
		{Source: dir, Target: "/ro", ReadOnly: true},
		{Source: dir, Target: "/rw"},
		{Source: file, Target: "/opt/deep/file"},
		{Source: file, Target: "/opt/app.conf", ReadOnly: true},
	}})
	boxtest.WantOutput(t, b, `exec 2>/dev/null
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

// liveMounts adds and takes away mounts of a running box.
func (e *suite) liveMounts(t testing.TB) {
	b := e.create(t, engine.Spec{})
	dir := boxtest.HostDir(t, 777, 777)
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(file, []byte("live\n"), 0o644), os.Chown(file, 777, 777)); err != nil {
		t.Fatal(err)
	}
	// A command that runs already sees them come and go.
	out := boxtest.NewScreen()
	c := boxtest.Shell(`echo ready; until test -e /opt/live/file; do sleep 0.02; done; echo x > /opt/live/made; echo come; while test -e /opt/live/file; do sleep 0.02; done; echo gone`)
	c.Stdout = out
	p := boxtest.Begin(t, b, c)
	out.Await(t, "ready")
	boxtest.Change(t, b, engine.Change{Attach: []engine.Mount{{Source: dir, Target: "/opt/live"}, {Source: file, Target: "/opt/one", ReadOnly: true}}})
	out.Await(t, "come")
	var st syscall.Stat_t
	if err := syscall.Stat(dir+"/made", &st); err != nil || st.Uid != 777 {
		t.Errorf("made by the box: %+v, %v", st, err)
	}
	boxtest.WantOutput(t, b, "cat /opt/one; echo x 2>/dev/null > /opt/one || echo read-only", "live\nread-only\n")
	boxtest.Change(t, b, engine.Change{Detach: []string{"/opt/live", "/opt/one"}})
	out.Await(t, "gone")
	if r := boxtest.Wait(t, p); r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
	boxtest.WantOutput(t, b, "ls -A /opt/live; cat /opt/one", "")
	// In one step, at the same place.
	boxtest.Change(t, b, engine.Change{Attach: []engine.Mount{{Source: dir, Target: "/opt/live"}}})
	boxtest.Change(t, b, engine.Change{Detach: []string{"/opt/live"}, Attach: []engine.Mount{{Source: dir, Target: "/opt/live", ReadOnly: true}}})
	boxtest.WantOutput(t, b, "cat /opt/live/file; touch /opt/live/x 2>/dev/null || echo read-only", "live\nread-only\n")
	// All or nothing.
	err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: dir, Target: "/opt/good"}, {Source: "/no/such/dir", Target: "/opt/bad"}}})
	if err == nil {
		t.Error("attached what does not exist")
	}
	boxtest.WantOutput(t, b, "ls -A /opt/good 2>/dev/null; true", "")
	if err := b.Update(t.Context(), engine.Change{Detach: []string{"/usr"}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("detaching what was never attached: %v", err)
	}
}

// nestedLiveMounts: outer mounts come before, and go after, those within, in
// whatever order a change lists them; no mount hides another.
func (e *suite) nestedLiveMounts(t testing.TB) {
	b := e.create(t, engine.Spec{})
	mount := func(target string) engine.Mount {
		dir := boxtest.HostDir(t, 0, 0)
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
		boxtest.WantOutput(t, b, "cat /data/name /data/in/name 2>/dev/null; true", c.seen)
	}
}

// mountWithin: the launcher keeps a source within its directory, even if the path has changed since it was
// checked; in the spec, and in a running box.
func (e *suite) mountWithin(t testing.TB) {
	root, outside := boxtest.HostDir(t, 0, 0), boxtest.HostDir(t, 0, 0)
	if err := errors.Join(os.Mkdir(root+"/dir", 0o755), os.Symlink(outside, root+"/out"), os.Symlink("../"+filepath.Base(outside), root+"/up")); err != nil {
		t.Fatal(err)
	}
	b := e.create(t, engine.Spec{Mounts: []engine.Mount{{Source: root + "/dir", Target: "/in", Within: root}}})
	boxtest.WantOutput(t, b, "touch /in/file && ls /in", "file\n")
	for _, name := range []string{"/out", "/up", "/dir/../..", "/../" + filepath.Base(outside)} {
		m := engine.Mount{Source: root + name, Target: "/data", Within: root}
		_, err := e.tryCreate(t.Context(), engine.Spec{Mounts: []engine.Mount{m}})
		for how, err := range map[string]error{"create": err, "attach": b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}})} {
			if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), root) || !strings.Contains(err.Error(), "leaves the directory") {
				t.Errorf("%s %s: %v", how, name, err)
			}
		}
	}
}

// mountsInWorkspace: mount points that the workspace does not have are made in it,
// as its owner would, for a new box and for a running one; they stay behind, empty.
func (e *suite) mountsInWorkspace(t testing.TB) {
	dir, work := boxtest.Workspace(t, 1234, 1234)
	skills := []engine.Mount{boxtest.Skill(t, "/workspace/.skills/a"), boxtest.Skill(t, "/workspace/.skills/b"), boxtest.Skill(t, "/workspace/deep/er/and/deeper")}
	user := engine.User{UID: 1000, GID: 1000}
	b := e.create(t, engine.Spec{User: user, Mounts: append(slices.Clone(skills), work)})
	const show = "cat /workspace/.skills/*/name /workspace/deep/er/and/deeper/name 2>/dev/null; true"
	boxtest.WantOutput(t, b, show, "/workspace/.skills/a\n/workspace/.skills/b\n/workspace/deep/er/and/deeper\n")
	boxtest.WantOutput(t, b, "stat -c '%u %a' /workspace/.skills; touch /workspace/.skills/a/x 2>/dev/null || echo no; echo mine > /workspace/.skills/file", "1000 755\nno\n")
	live := boxtest.Skill(t, "/workspace/.skills/live")
	file := engine.Mount{Source: filepath.Join(live.Source, "name"), Target: "/workspace/etc/app.conf"}
	boxtest.Change(t, b, engine.Change{Attach: []engine.Mount{live, file}})
	boxtest.WantOutput(t, b, "cat /workspace/.skills/live/name /workspace/etc/app.conf", "/workspace/.skills/live\n/workspace/.skills/live\n")
	// The workspace cannot go while something is in it; all together can, in any order.
	targets := []string{"/workspace"}
	if err := b.Update(t.Context(), engine.Change{Detach: targets}); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "within") {
		t.Errorf("detaching the outer one alone: %v", err)
	}
	for _, m := range append(skills, live, file) {
		targets = append(targets, m.Target)
	}
	boxtest.Change(t, b, engine.Change{Detach: targets})
	boxtest.WantOutput(t, b, "ls -A /workspace; cat /proc/self/mountinfo | grep -c ' /workspace' || true", "0\n")
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		var st syscall.Stat_t
		if err := errors.Join(err, syscall.Lstat(path, &st)); err != nil {
			return err
		}
		if st.Uid != 1234 || st.Gid != 1234 {
			t.Errorf("%s belongs to %d:%d on the host", path, st.Uid, st.Gid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if names, err := filepath.Glob(dir + "/.skills/*/*"); err != nil || len(names) != 0 {
		t.Errorf("in the mount points: %v, %v", names, err)
	}
}

// manyNestedMounts: as many as there can be, in one another as far as they go.
func (e *suite) manyNestedMounts(t testing.TB) {
	_, work := boxtest.Workspace(t, 0, 0)
	all := []engine.Mount{work}
	target := work.Target
	for i := range 16 {
		target += fmt.Sprint("/sub/", i)
		m := boxtest.Skill(t, target)
		m.ReadOnly = false
		all = append(all, m)
	}
	for i := len(all); i < spec.MaxMounts; i++ {
		all = append(all, boxtest.Skill(t, fmt.Sprint("/workspace/.skills/", i)))
	}
	slices.Reverse(all)
	b := e.create(t, engine.Spec{Mounts: all})
	boxtest.WantOutput(t, b, "cat "+target+"/name; ls /workspace/.skills | wc -l", target+"\n47\n")
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{boxtest.Skill(t, "/workspace/one/more")}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("one more: %v", err)
	}
	var targets []string
	for _, m := range all {
		targets = append(targets, m.Target)
	}
	slices.Reverse(targets)
	boxtest.Change(t, b, engine.Change{Detach: targets, Attach: all[:20]})
	boxtest.WantOutput(t, b, "ls /workspace/.skills | wc -l", "20\n")
}
