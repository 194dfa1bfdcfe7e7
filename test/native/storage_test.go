package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// storage is a service with a data directory of its own.
type storage struct {
	*native.Service
	t    testing.TB
	dir  string // its state directory
	data string
	uid  int
}

// startStorage runs a service for user uid. The test runs as root, which may connect as well.
func startStorage(t testing.TB, uid int) *storage {
	t.Helper()
	s := &storage{t: t, dir: stateDir(t), uid: uid, data: filepath.Join(dataParent(t), "volumes")}
	s.start()
	t.Cleanup(s.stop)
	t.Cleanup(s.wantNothingMounted)
	return s
}

// dataParent is where a data directory can be made. It is removed before loop devices of
// files in it are looked for.
func dataParent(t testing.TB) string {
	t.Helper()
	testutil.RequireRoot(t)
	dir, err := os.MkdirTemp("", "boxd-test-data-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		waitUntil(t, "no loop device is left", func() bool { return len(loops(t, dir)) == 0 })
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// loops are the files below dir that are, or were, behind loop devices.
func loops(t testing.TB, dir string) (files []string) {
	t.Helper()
	found, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		text, _ := os.ReadFile(path) // freed meanwhile
		if file := strings.TrimSpace(string(text)); strings.HasPrefix(file, dir+"/") {
			files = append(files, file)
		}
	}
	return files
}

func (s *storage) start() {
	s.t.Helper()
	_, initPath := testutil.BuildBinaries(s.t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	socket, err := native.StartLauncher(ctx, native.LauncherOptions{
		InitPath: initPath, StateDir: s.dir, DataDir: s.data, ClientUID: s.uid, ClientGID: s.uid,
		MountRoots: []string{"/"}, // what is refused here is refused for another reason
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if s.Service, err = native.Connect(ctx, native.ServiceOptions{Socket: socket}); err != nil {
		s.t.Fatal(err)
	}
}

// stop ends the service with its boxes.
func (s *storage) stop() {
	if s.Health(context.Background()) != nil {
		s.Close()
		s.start()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Stop(ctx, true); err != nil {
		s.t.Errorf("stopping the service: %v", err)
	}
	waitUntil(s.t, "the service has ended", func() bool {
		return len(serviceProcesses(s.t, "launcher", s.dir))+len(serviceProcesses(s.t, "keeper", s.dir)) == 0
	})
}

// wantNothingMounted: a launcher soon has no volume mounted.
func (s *storage) wantNothingMounted() {
	if err := s.Health(context.Background()); err != nil {
		return // one that is gone has nothing
	}
	for _, pid := range serviceProcesses(s.t, "launcher", s.dir) {
		waitUntil(s.t, "the launcher has no volume mounted", func() bool {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
			return !strings.Contains(string(text), "/private/volumes/")
		})
	}
}

// make makes a volume and returns a mount of all of it.
func (s *storage) make(name string, bytes, inodes int64, target string) engine.Mount {
	s.t.Helper()
	if err := s.MakeVolume(s.t.Context(), engine.Volume{Name: name, Bytes: bytes, Inodes: inodes}); err != nil {
		s.t.Fatal(err)
	}
	return engine.Mount{Source: "/", Target: target, Volume: name}
}

func (s *storage) state(name string) (st engine.VolumeState, ok bool) {
	s.t.Helper()
	all, err := s.Volumes(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, v := range all {
		if v.Name == name {
			return v, true
		}
	}
	return st, false
}

func (s *storage) remove(b engine.Box) {
	s.t.Helper()
	if err := b.Remove(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

const fillBytes = `exec head -c 64M /dev/zero > "$0/file"`

const fillFiles = `import os, sys
n = 0
while True:
    os.close(os.open(f"{sys.argv[1]}/{n}", os.O_CREAT)); n += 1`

// TestVolumeFull: when a volume is full, the kernel and the verdict tell the writer, and nothing else notices: not the
// other volume, not the other box.
func TestVolumeFull(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 4242)
	work := s.make("work", 8*mib, 1024, engine.WorkspaceTarget)
	side := s.make("side", 8*mib, 1024, "/side")
	b := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{work, side}})
	other := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{s.make("other", 8*mib, 1024, engine.WorkspaceTarget)}})
	for range 2 {
		wantVolumeFull(t, run(t, b, engine.Command{Args: []string{"sh", "-c", fillBytes, "/workspace"}}), "/workspace 8 MiB")
		want(t, run(t, b, shell("exit 3")), engine.Exited, 3) // full before it began
		st, ok := s.state("work")
		if !ok || st.Bytes != 8*mib || st.UsedBytes < 6*mib || st.UsedBytes > 8*mib {
			t.Errorf("state of a full volume: %+v", st)
		}
		wantOutput(t, b, "echo x > /side/x && cat /side/x", "x\n")
		wantOutput(t, other, "head -c 4M /dev/zero > /workspace/f && stat -c %s /workspace/f", "4194304\n")
		wantOutput(t, b, "rm /workspace/file && head -c 4M /dev/zero > /workspace/file && stat -c %s /workspace/file; rm /workspace/file", "4194304\n")

		wantVolumeFull(t, run(t, b, python(fillFiles, "/side")), "/side 8 MiB")
		wantOutput(t, other, "touch /workspace/g", "")
		wantOutput(t, b, "cd /side && find . -type f -delete && touch y", "")
		killLauncher(t, s.dir) // and the next round with the next launcher
	}
}

// TestVolumeFullOfLargeWrites: a file system refuses a large write as a whole, and is full
// with most of it left.
func TestVolumeFullOfLargeWrites(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	b := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{s.make("large", 16*mib, 0, engine.WorkspaceTarget)}})
	for _, size := range []string{"512", "64k", "1M", "4M"} {
		wantVolumeFull(t, run(t, b, shell("exec dd if=/dev/zero of=/workspace/file bs="+size)), "/workspace 16 MiB")
		wantVolumeFull(t, run(t, b, shell("exec dd if=/dev/zero of=/workspace/more bs=4M")), "/workspace 16 MiB")
		want(t, run(t, b, shell("exit 3")), engine.Exited, 3)
		wantOutput(t, b, "rm /workspace/*", "")
		want(t, run(t, b, shell("head -c 4M /dev/zero > /workspace/file; rm /workspace/file; exit 3")), engine.Exited, 3)
	}
}

func wantVolumeFull(t *testing.T, o outcome, limit string) {
	t.Helper()
	want(t, o, engine.DiskQuota, 1)
	if o.Limit != limit || !strings.Contains(o.stderr, "No space left") && !strings.Contains(o.stderr, "quota exceeded") {
		t.Errorf("limit %q, stderr %q, want limit %q and no space left", o.Limit, tail(o.stderr), limit)
	}
}

// TestVolumeFullAfterAdoption: another client, and another launcher, still know which
// mounts of a box can be filled.
func TestVolumeFullAfterAdoption(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	work := s.make("work", 4*mib, 0, engine.WorkspaceTarget)
	work.Source = "/sub"
	dir, err := s.OpenDirectory(t.Context(), engine.Directory{Volume: "work", Path: "/sub", Make: true})
	if err != nil {
		t.Fatal(err)
	}
	dir.Close()
	b := createLive(t, s.Service, engine.Spec{ID: "live", Mounts: []engine.Mount{work}})
	late := s.make("late", 4*mib, 0, "/late")
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{late}}); err != nil {
		t.Fatal(err)
	}
	for _, again := range []func(){func() {}, func() { killLauncher(t, s.dir) }} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		again()
		s.start()
		b = adoptLive(t, s.Service, "live")
		if m := b.Spec().Mounts; len(m) != 2 || !slices.Contains(m, work) || !slices.Contains(m, late) {
			t.Errorf("mounts after adoption: %+v", m)
		}
		for _, at := range []string{"/workspace", "/late"} {
			wantVolumeFull(t, run(t, b, engine.Command{Args: []string{"sh", "-c", fillBytes, at}}), at+" 4 MiB")
			wantOutput(t, b, "rm "+at+"/file", "")
		}
	}
}

// TestVolumeStays: the next box finds the content of a volume, whatever ended in between.
func TestVolumeStays(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 4242)
	m := s.make("keep", 8*mib, 0, "/data")
	for round, between := range []func(){
		func() {},
		func() { killLauncher(t, s.dir) },
		func() {
			if err := s.Stop(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			s.start()
		},
	} {
		b := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{m}})
		wantOutput(t, b, "cat /data/n 2>/dev/null | wc -l; echo >> /data/n", fmt.Sprintln(round))
		s.remove(b)
		between()
	}
	if err := s.MakeVolume(t.Context(), engine.Volume{Name: "keep", Bytes: 32 * mib}); err != nil {
		t.Fatal(err)
	}
	b := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{m}})
	wantOutput(t, b, "wc -l < /data/n; head -c 20M /dev/zero > /data/f && stat -c %s /data/f", "3\n20971520\n")
	s.remove(b)
	if st, ok := s.state("keep"); !ok || st.Bytes != 32*mib {
		t.Errorf("after growing: %+v", st)
	}
	for range 2 { // an unknown one is no error
		if err := s.RemoveVolume(t.Context(), "keep"); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := s.state("keep"); ok {
		t.Error("the volume is still there")
	}
	m = s.make("keep", 8*mib, 0, "/data")
	b = createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{m}})
	wantOutput(t, b, "ls /data | grep -v lost+found; stat -c %u:%g:%a /data", "0:0:700\n")
}

// TestVolumeInUse: a volume that a box has is not removed, also by a launcher that has
// not made the box.
func TestVolumeInUse(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	m := s.make("used", 4*mib, 0, "/data")
	b := createLive(t, s.Service, engine.Spec{ID: "holder", Mounts: []engine.Mount{m}})
	wantOutput(t, b, "echo 1 > /data/f", "")
	refused := func() {
		t.Helper()
		err := s.RemoveVolume(t.Context(), "used")
		if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), `"holder"`) {
			t.Errorf("removing a volume in use: %v", err)
		}
		wantOutput(t, b, "cat /data/f", "1\n")
	}
	refused()
	if _, err := s.Create(t.Context(), engine.Spec{ID: "holder"}); err == nil {
		t.Error("a second box of that name was made")
	}
	refused()
	killLauncher(t, s.dir)
	refused()
	for range 2 {
		if err := b.Update(t.Context(), engine.Change{Detach: []string{"/data"}}); err != nil {
			t.Fatal(err)
		}
		if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); err != nil {
			t.Fatal(err)
		}
		refused()
	}
	bad := m
	bad.Source, bad.Target = "/nothing", "/x"
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{bad}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a source that is not there: %v", err)
	}
	p := begin(t, b, shell("exec 3< /data/f; read x; cat <&3")) // holds a file of it
	if err := b.Update(t.Context(), engine.Change{Detach: []string{"/data"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveVolume(t.Context(), "used"); err != nil {
		t.Errorf("after detaching: %v", err)
	}
	_ = wait(t, p)
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a volume that is gone: %v", err)
	}
	if _, err := s.Create(t.Context(), engine.Spec{Mounts: []engine.Mount{m}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a box with a volume that is gone: %v", err)
	}
}

// TestVolumeUnreadable: one bad volume takes no other away, and can be removed.
func TestVolumeUnreadable(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	s.make("good", 4*mib, 0, "/data")
	for _, bad := range []string{"bad.img", "other.volume"} {
		if err := os.WriteFile(filepath.Join(s.data, bad), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if v, ok := s.state("good"); !ok || v.Bytes != 4*mib || v.By == "" {
		t.Errorf("the good one: %+v, %v", v, ok)
	}
	if v, ok := s.state("bad"); !ok || v.By != "" {
		t.Errorf("the bad one: %+v, %v", v, ok)
	}
	if err := s.MakeVolume(t.Context(), engine.Volume{Name: "bad", Bytes: 4 * mib}); err == nil {
		t.Error("the bad one can be used")
	}
	if err := s.RemoveVolume(t.Context(), "bad"); err != nil {
		t.Error(err)
	}
	if v, ok := s.state("bad"); ok {
		t.Errorf("still there: %+v", v)
	}
	s.make("bad", 4*mib, 0, "/data")
}

// TestVolumeComesAndGoes: one that a running box gets is watched like the others; one that
// is taken away, and removed, is free at once, whatever else the box does.
func TestVolumeComesAndGoes(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	b := createLive(t, s.Service, engine.Spec{})
	for _, name := range []string{"first", "second"} {
		m := s.make(name, 4*mib, 0, "/data")
		if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); err != nil {
			t.Fatal(err)
		}
		wantVolumeFull(t, run(t, b, engine.Command{Args: []string{"sh", "-c", fillBytes, "/data"}}), "/data 4 MiB")
		// What can be seen to be impossible takes nothing away.
		change := engine.Change{Detach: []string{"/data"}, Attach: []engine.Mount{{Source: "/", Target: "/other", Volume: "unknown"}}}
		if err := b.Update(t.Context(), change); err == nil {
			t.Fatal("attached")
		}
		if err := s.RemoveVolume(t.Context(), name); err == nil {
			t.Fatal("removed while it is in use")
		}
		change.Attach = nil
		if err := b.Update(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		if err := s.RemoveVolume(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "its device is free", func() bool { return len(loops(t, s.data)) == 0 })
		want(t, run(t, b, shell("exit 3")), engine.Exited, 3)
	}
}
