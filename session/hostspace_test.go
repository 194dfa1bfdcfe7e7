package session

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/enginetest"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// hostBench is a bench whose sessions may mount directories below one of the host.
func hostBench(t *testing.T) (b *bench, root string) {
	b = newBench(t)
	root = t.TempDir()
	b.policy.AllowedMountRoots = []string{root}
	return b, root
}

func TestHostWorkspaceIsMade(t *testing.T) {
	b, root := hostBench(t)
	b.start()
	dir := filepath.Join(root, "tenants", "one")
	ask := policy.Request{MakeWorkspace: true, Wishes: spec.Wishes{Workspace: dir, WorkspaceTarget: "/work"}}
	v := b.ensure(keyA, ask)
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		t.Fatalf("%v, %v", st, err)
	}
	if m := b.host.Box(v.Box).Spec().Mounts[0]; m.Source != dir || m.Target != "/work" || m.Within != root {
		t.Errorf("mount %+v", m)
	}
	must(t, os.RemoveAll(filepath.Join(root, "tenants")))
	b.host.Kill(v.Box)
	b.restart()
	b.exec(keyA, "true") // in a new box, which needs it again
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	must(t, b.Remove(ctx, me, keyA))
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a directory of the host went with the session: %v", err)
	}
	b.Close(ctx, false)
	b.alter = func(o *Options) { o.Storage = nil }
	b.start()
	if _, err := b.Ensure(ctx, me, keyB, ask); err == nil || !strings.Contains(err.Error(), "cannot be made") {
		t.Errorf("without storage: %v", err)
	}
}

func TestHostWorkspaceIsLimited(t *testing.T) {
	b, root := hostBench(t)
	b.start()
	ask := policy.Request{Wishes: spec.Wishes{Workspace: root, WorkspaceSize: sizeOf(8 << 20), WorkspaceInodes: ptr(int64(100))}}
	v := b.ensure(keyA, ask)
	if got := b.host.Limit(root); got != (enginetest.Limit{Bytes: 8 << 20, Inodes: 100}) || v.Unenforced != "" || len(b.host.VolumeNames()) != 0 {
		t.Errorf("limit %v, %+v", got, v)
	}
	b.host.SetLimit(root, enginetest.Limit{})
	b.host.Kill(v.Box)
	b.exec(keyA, "true")
	if got := b.host.Limit(root); got != (enginetest.Limit{Bytes: 8 << 20, Inodes: 100}) {
		t.Errorf("with the next box: %v", got)
	}
	b.ensure(Key{"t", "by-size"}, policy.Request{Wishes: spec.Wishes{Workspace: root, WorkspaceSize: sizeOf(8 << 20)}})
	if got := b.host.Limit(root); got != (enginetest.Limit{Bytes: 8 << 20, Inodes: 1024}) {
		t.Errorf("inodes by the size: %v", got)
	}
	b.host.SetLimit(root, enginetest.Limit{Bytes: 8 << 20, Inodes: 100})
	b.ensure(keyB, policy.Request{Wishes: spec.Wishes{Workspace: root}}) // leaves it
	if got := b.host.Limit(root); got != (enginetest.Limit{Bytes: 8 << 20, Inodes: 100}) {
		t.Errorf("after a session without a size: %v", got)
	}

	b.host.RefuseLimits(fmt.Errorf("tmpfs has no project quota: use ext4: %w", engine.ErrUnenforceable))
	_, err := b.Ensure(ctx, me, Key{"t", "c"}, ask)
	if !errors.Is(err, engine.ErrUnenforceable) || !strings.Contains(err.Error(), "workspace_size 8 MiB: tmpfs has no project quota") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	b.Close(ctx, false)
	b.policy.AllowDegraded = true
	b.start()
	key := Key{"t", "d"}
	if v := b.ensure(key, ask); !strings.Contains(v.Unenforced, "tmpfs has no project quota") {
		t.Errorf("unenforced %q", v.Unenforced)
	}
	b.restart()
	v = b.get(key)
	if v.Unenforced == "" {
		t.Error("it is forgotten by a restart")
	}
	b.host.RefuseLimits(nil)
	b.host.Kill(v.Box)
	b.exec(key, "true")
	if v := b.get(key); v.Unenforced != "" {
		t.Errorf("unenforced %q, although it is now", v.Unenforced)
	}
	b.host.RefuseLimits(errors.New("disk failure"))
	if _, err := b.Ensure(ctx, me, Key{"t", "e"}, ask); err == nil || !strings.Contains(err.Error(), "preparing the workspace: disk failure") {
		t.Errorf("another error: %v", err)
	}
}

// Commands start in the workspace wherever it is.
func TestWorkingDirectory(t *testing.T) {
	b := open(t)
	for _, c := range []struct {
		r         policy.Request
		dir, want string
	}{
		{policy.Request{}, "", ""}, // the engine finds it
		{policy.Request{Wishes: spec.Wishes{WorkspaceTarget: "/data/deep"}}, "", "/data/deep"},
		{policy.Request{Wishes: spec.Wishes{WorkspaceTarget: "/data/deep"}}, "/tmp", "/tmp"},
		{policy.Request{Wishes: spec.Wishes{WorkspaceTarget: "/data", Mounts: []spec.MountWish{{Source: "/srv/data/x", Target: "/workspace"}}}}, "", "/data"},
		{policy.Request{Wishes: spec.Wishes{WorkspaceTarget: "/workspace"}}, "", ""},
		{policy.Request{Wishes: spec.Wishes{WorkspaceMode: ptr("none")}}, "", ""},
	} {
		v := b.ensure(keyA, c.r)
		if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}, Dir: c.dir}); err != nil {
			t.Fatal(err)
		}
		p, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}, Dir: c.dir})
		must(t, err)
		box := b.host.Box(v.Box)
		if box.Last().Dir != c.want || box.Process(p.Key).Managed().Dir != c.want {
			t.Errorf("%+v, dir %q: %q and %q, want %q", c.r, c.dir, box.Last().Dir, box.Process(p.Key).Managed().Dir, c.want)
		}
		// And operations on files, whose paths may be relative.
		for who, open := range map[string]func() (engine.LiveBox, func(), error){
			"access": func() (engine.LiveBox, func(), error) { return b.Access(ctx, me, keyA, nil, Access{Action: "x"}) },
			"look":   func() (engine.LiveBox, func(), error) { return b.Look(ctx, me, keyA, Access{Action: "x"}) },
		} {
			live, release, err := open()
			must(t, err)
			_, err = engine.Run(ctx, live, engine.Command{Args: []string{"true"}, Dir: c.dir})
			if release(); err != nil || box.Last().Dir != c.want {
				t.Errorf("%s, %+v, dir %q: %q, %v; want %q", who, c.r, c.dir, box.Last().Dir, err, c.want)
			}
		}
		must(t, b.Remove(ctx, me, keyA))
	}
}

// A live session's mounts can be anything but its workspace, wherever that is.
func TestMountsBesideAWorkspaceElsewhere(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{WorkspaceTarget: "/data", WorkspaceSize: sizeOf(8 << 20)}})
	x := spec.MountWish{Source: "/srv/data/x", Target: "/workspace"}
	v, err := b.Update(ctx, me, keyA, spec.Update{Attach: []spec.MountWish{x}})
	must(t, err)
	if _, err := b.Update(ctx, me, keyA, spec.Update{Detach: []string{"/data"}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("the workspace was detached: %v", err)
	}
	skill := spec.MountWish{Source: "/one", Target: "/data/.skills/one", ReadOnly: true, Volume: "skills-1"}
	v = b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{skill}}})
	list := b.host.Box(v.Box).Spec().Mounts
	if len(list) != 2 || list[0].Volume != volumeName(keyA) || list[1] != (mount{Source: "/one", Target: "/data/.skills/one", ReadOnly: true, Volume: "skills-1"}) {
		t.Errorf("mounts %+v", list)
	}
	if v = b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{}}}); len(b.host.Box(v.Box).Spec().Mounts) != 1 {
		t.Errorf("mounts %+v", b.host.Box(v.Box).Spec().Mounts)
	}
}

func TestNoOutputLimit(t *testing.T) {
	b := newBench(t)
	b.alter = func(o *Options) { o.OutputLimit = 100 }
	b.start()
	v := b.ensure(keyA, policy.Request{})
	for _, c := range []struct {
		e    Exec
		want int64
	}{{Exec{}, 100}, {Exec{OutputLimit: 50}, 50}, {Exec{NoOutputLimit: true}, 0}, {Exec{NoOutputLimit: true, OutputLimit: 50}, 50}} {
		c.e.Args = []string{"true"}
		if _, err := b.Exec(ctx, me, keyA, nil, c.e); err != nil || b.host.Box(v.Box).Last().OutputLimit != c.want {
			t.Errorf("%+v: limit %d, %v; want %d", c.e, b.host.Box(v.Box).Last().OutputLimit, err, c.want)
		}
	}
}

func TestProcessOptions(t *testing.T) {
	b := open(t)
	v, err := b.Start(ctx, me, keyA, &policy.Request{}, ProcessSpec{ID: "p", Args: []string{"serve"}, ProcessSettings: ProcessSettings{DropStderr: true, Memory: 64 << 20}})
	must(t, err)
	if m := b.host.Box(v.Box).Process(v.Key).Managed(); !m.DropStderr || m.DropOldest || m.Memory != 64<<20 {
		t.Errorf("%+v", m)
	}
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "q", Args: []string{"serve"}, ProcessSettings: ProcessSettings{Memory: -5}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a limit below 0: %v", err)
	}
	b.restart()
	p, err := b.Process(keyA, "p")
	must(t, err)
	if got := p.View(); !v.DropStderr || !got.DropStderr || v.Memory != 64<<20 || got.Memory != 64<<20 {
		t.Errorf("%+v, after a restart %+v", v, got)
	}
}
