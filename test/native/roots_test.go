package native

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// TestMountRootsStay: a launcher that is started again has the roots that it was started
// with. One that is wanted with others is replaced, and boxes keep what they have.
func TestMountRootsStay(t *testing.T) {
	testutil.Long(t)
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	const client = 4242
	dir, one, two := stateDir(t), hostDir(t, 1000, 1000), hostDir(t, 1000, 1000)
	start := func(roots ...string) *native.Service {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		socket, err := native.StartLauncher(ctx, native.LauncherOptions{InitPath: initPath, StateDir: dir, ClientUID: client, ClientGID: client, MountRoots: roots})
		if err != nil {
			t.Fatal(err)
		}
		s, err := native.Connect(ctx, native.ServiceOptions{Socket: socket})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	wants := func(s *native.Service, source string, ok bool) {
		t.Helper()
		f, err := s.OpenDirectory(t.Context(), engine.Directory{Path: source, Within: source})
		if err == nil {
			f.Close()
		}
		if ok && err != nil || !ok && (err == nil || !strings.Contains(err.Error(), "outside of the launcher's mount roots")) {
			t.Errorf("%s: %v", source, err)
		}
	}
	s := start(one)
	wants(s, one, true)
	wants(s, two, false)
	b := createLive(t, s, engine.Spec{Mounts: []engine.Mount{{Source: one, Target: "/data"}}})
	err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: two, Target: "/two"}}})
	if err == nil || !strings.Contains(err.Error(), `(mount at "/two")`) {
		t.Errorf("attaching what is outside: %v", err)
	}
	if other, err := s.Create(t.Context(), engine.Spec{Mounts: []engine.Mount{{Source: two, Target: "/two"}}}); err == nil || !strings.Contains(err.Error(), "outside of the launcher's mount roots") {
		t.Errorf("a box with what is outside: %v, %v", other, err)
	}
	killLauncher(t, dir)
	wants(s, one, true)
	wants(s, two, false)
	s.Close()

	s = start(two + ":ro")
	wants(s, one, false)
	if f, err := s.OpenDirectory(t.Context(), engine.Directory{Path: two, Within: two, ReadOnly: true}); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
	b, err = s.Adopt(t.Context(), b.ID(), engine.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	wantOutput(t, b, "echo kept > /data/file; cat /data/file", "kept\n")
	if _, err := os.Stat(one + "/file"); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Stop(ctx, true); err != nil {
		t.Errorf("stopping the service: %v", err)
	}
	waitUntil(t, "the service has ended", func() bool {
		return len(serviceProcesses(t, "launcher", dir))+len(serviceProcesses(t, "keeper", dir)) == 0
	})
}
