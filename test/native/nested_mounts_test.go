package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

// newServiceBox is newBox of a service.
func newServiceBox(t *testing.T) engine.Box {
	s, _ := newService(t)
	return createLive(t, s, engine.Spec{})
}

// TestBadNestedMounts: what cannot be made is refused in one line, and nothing of it
// is left, for a new box and for a running one.
func TestBadNestedMounts(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	dir, work := workspace(t, 0, 0)
	if err := errors.Join(os.WriteFile(dir+"/file", nil, 0o644), os.Symlink("/etc", dir+"/link"), os.Symlink(dir, dir+"/host"), os.Mkdir(dir+"/foreign", 0o755), os.Chown(dir+"/foreign", 99, 99)); err != nil {
		t.Fatal(err)
	}
	frozen := work
	frozen.ReadOnly = true
	for _, c := range []struct {
		outer  engine.Mount
		target string
		rule   string
	}{
		{frozen, "/workspace/.skills/x", "read-only"},
		{frozen, "/workspace/x", "read-only"},
		{work, "/workspace/file", "is not a directory"},
		{work, "/workspace/file/x", "passes a file"},
		{work, "/workspace/link", "is a symlink"},
		{work, "/workspace/link/x", "passes a symlink"},
		{work, "/workspace/host/x", "passes a symlink"},
		{work, "/workspace/foreign/x/y", "may not make"},
		{work, "/usr/x", "read-only"},
		{work, "/usr/share/x/y", "read-only"},
	} {
		m := skill(t, c.target)
		_, err := e.Create(t.Context(), engine.Spec{Mounts: []engine.Mount{c.outer, m}})
		b := create(t, e, engine.Spec{Mounts: []engine.Mount{c.outer}})
		for how, err := range map[string]error{"create": err, "attach": b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}})} {
			wantBadMount(t, m.Source, c.target, err)
			if err == nil || !strings.Contains(err.Error(), c.rule) {
				t.Errorf("%s %s: %v, want %q", how, c.target, err, c.rule)
			}
		}
		remove(t, b)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 4 {
		t.Errorf("in the workspace: %v, %v", names, err)
	}
}

// TestFullNestedMount: if no inode is free, the mount point is refused and its parts are removed: another user of
// the file system has as much room as before.
func TestFullNestedMount(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{TmpSize: 1 << 20})
	// All inodes but one.
	wantOutput(t, b, "cd /tmp; i=0; while mkdir $i 2>/dev/null; do i=$((i+1)); done; rmdir 0; echo full", "full\n")
	for range 3 {
		err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{skill(t, "/tmp/a/b")}})
		if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "no space") {
			t.Errorf("%v", err)
		}
	}
	change(t, b, engine.Change{Attach: []engine.Mount{skill(t, "/tmp/a")}})
	wantOutput(t, b, "cat /tmp/a/name", "/tmp/a\n")
}

// TestNestedMountInFullVolume does the same with a hard limit on the workspace, which also holds for what is created
// in it on the box's behalf.
func TestNestedMountInFullVolume(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 4242)
	b := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{s.make("work", 8*mib, 1024, engine.WorkspaceTarget)}})
	want(t, run(t, b, python(fillFiles, "/workspace")), engine.DiskQuota, 1)
	m := skill(t, "/workspace/.skills/x")
	for i := range 2 { // without an inode, and with one of two
		err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}})
		if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "no space") {
			t.Errorf("%v", err)
		}
		wantOutput(t, b, fmt.Sprintf("cd /workspace; ls -A | grep -c skills; rm %d; echo x > again && rm again && echo one is free", i), "0\none is free\n")
	}
	change(t, b, engine.Change{Attach: []engine.Mount{m}})
	wantOutput(t, b, "cat /workspace/.skills/x/name", "/workspace/.skills/x\n")
	s.remove(b)
}

// churnScript renames the directory of the skills, and puts other things in its place,
// for ever.
const churnScript = `
import os, shutil
d, away = "/workspace/.skills", "/workspace/away"
os.makedirs(d, exist_ok=True)
print("on", flush=True)
i = 0
def quiet(f, *a):
    try: f(*a)
    except OSError: pass
while True:
    i += 1
    name = "%s%d" % (away, i) # never the same
    quiet(os.rename, d, name)
    if i % 3 == 0: quiet(os.symlink, "/etc", d)
    if i % 3 == 1: quiet(os.mkdir, d)
    quiet(os.rmdir, d)
    quiet(os.unlink, d)
    quiet(os.rename, name, d)
    if not os.path.isdir(d) and not os.path.exists(name): quiet(os.mkdir, d)
`

// TestNestedMountRace: whatever the box does with the directories above its mounts, a
// mount is where it was asked for or refused, and goes away when it shall.
func TestNestedMountRace(t *testing.T) {
	testutil.Long(t)
	for name, b := range map[string]engine.Box{"engine": newBox(t, engine.Spec{}), "service": newServiceBox(t)} {
		t.Run(name, func(t *testing.T) {
			dir, work := workspace(t, 0, 0)
			change(t, b, engine.Change{Attach: []engine.Mount{work}})
			out := newScreen()
			c := python(churnScript)
			c.Stdout = out
			p := begin(t, b, c)
			out.Await(t, "on")
			attached, refused := 0, 0
			for i := 0; i < 3000 && (i < 60 || attached < 10 || refused == 0); i++ {
				m := skill(t, fmt.Sprintf("/workspace/.skills/x%d/y", i%5))
				err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}})
				if err != nil {
					wantBadMount(t, m.Source, m.Target, err)
					refused++
					continue
				}
				attached++
				change(t, b, engine.Change{Detach: []string{m.Target}})
				if o := run(t, b, shell("grep -c ' /workspace/' /proc/self/mountinfo")); o.Stdout != "0\n" {
					t.Fatalf("still mounted: %s", run(t, b, shell("grep ' /workspace' /proc/self/mountinfo")).Stdout)
				}
			}
			t.Logf("attached %d times, refused %d times", attached, refused)
			if attached == 0 {
				t.Error("never attached")
			}
			if err := p.Signal(9); err != nil {
				t.Error(err)
			}
			wait(t, p)
			change(t, b, engine.Change{Detach: []string{work.Target}})
			if names, err := filepath.Glob(dir + "/*/name"); err != nil || len(names) != 0 {
				t.Errorf("%v, %v", names, err)
			}
		})
	}
}

// TestMovedMount: a mount that the box has taken elsewhere, by a rename of the directory
// above, can be detached, also by the launcher after the one that attached it.
func TestMovedMount(t *testing.T) {
	s, dir := newService(t)
	_, work := workspace(t, 0, 0)
	b := createLive(t, s, engine.Spec{Mounts: []engine.Mount{work}})
	one, two, three := skill(t, "/workspace/.skills/one"), skill(t, "/workspace/.skills/two"), skill(t, "/workspace/.skills/three")
	change(t, b, engine.Change{Attach: []engine.Mount{one, two, three}})
	wantOutput(t, b, "cd /workspace && mv .skills 'a\nb' && ln -s /etc .skills && cat a*/one/name", "/workspace/.skills/one\n")
	change(t, b, engine.Change{Detach: []string{one.Target}})
	wantOutput(t, b, "cd /workspace; cat a*/one/name 2>/dev/null; cat a*/two/name", "/workspace/.skills/two\n")
	killLauncher(t, dir)
	change(t, b, engine.Change{Detach: []string{two.Target}})
	wantOutput(t, b, "cd /workspace; cat a*/two/name 2>/dev/null; cat a*/three/name", "/workspace/.skills/three\n")
	if spec := b.Spec(); len(spec.Mounts) != 2 {
		t.Errorf("mounts: %+v", spec.Mounts)
	}
	// Somebody outside removes a mount point: its mount goes with it.
	names, err := filepath.Glob(work.Source + "/a*/three")
	if err != nil || len(names) != 1 || os.Remove(names[0]) != nil {
		t.Fatalf("%v, %v", names, err)
	}
	change(t, b, engine.Change{Detach: []string{three.Target}})
	// A mount that is attached again is at its old path.
	wantOutput(t, b, "cd /workspace && rm .skills && echo ok", "ok\n")
	change(t, b, engine.Change{Attach: []engine.Mount{one}})
	wantOutput(t, b, "cat /workspace/.skills/one/name", "/workspace/.skills/one\n")
}

// TestFrozenBox: a launcher that is killed while it looks for a mount leaves the box
// frozen; the next one lets it go on.
func TestFrozenBox(t *testing.T) {
	s, dir := newService(t)
	b := createLive(t, s, engine.Spec{})
	p := launch(t, b, managedShell("a", "read x; exit 7"))
	work := filepath.Dir(workDirs(t, b)[0])
	if err := os.WriteFile(filepath.Join(filepath.Dir(work), "cgroup.freeze"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "it is frozen", func() bool {
		text, err := os.ReadFile(filepath.Join(work, "cgroup.events"))
		return err == nil && strings.Contains(string(text), "frozen 1")
	})
	killLauncher(t, dir)
	goOn(t, p)
	wantManaged(t, p, engine.Exited, 7)
}
