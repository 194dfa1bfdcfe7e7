package native

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
