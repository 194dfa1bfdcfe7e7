package native

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

// TestNoDataDirectory: boxes do not need one, and requests for a volume get the reason why there is none.
func TestNoDataDirectory(t *testing.T) {
	testutil.Long(t)
	s, dir := newService(t)
	err := s.MakeVolume(t.Context(), engine.Volume{Name: "v", Bytes: mib})
	if !errors.Is(err, engine.ErrUnenforceable) || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("without a data directory: %v", err)
	}
	if list, err := s.Volumes(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("volumes: %v, %v", list, err)
	}
	if err := s.RemoveVolume(t.Context(), "v"); err != nil {
		t.Error(err)
	}
	if _, err := s.Create(t.Context(), engine.Spec{Mounts: []engine.Mount{{Source: "/", Target: "/x", Volume: "v"}}}); !errors.Is(err, engine.ErrUnenforceable) {
		t.Errorf("a box with a volume: %v", err)
	}
	wantOutput(t, createLive(t, s, engine.Spec{}), "echo x", "x\n")
	_ = dir
}

// TestOpenDataDirectory: one that others can write to is not used until that is put
// right.
func TestOpenDataDirectory(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	if err := os.RemoveAll(s.data); err != nil {
		t.Fatal(err)
	}
	parent := filepath.Dir(s.data)
	if err := os.Chmod(parent, 0o777); err != nil {
		t.Fatal(err)
	}
	killLauncher(t, s.dir)
	err := s.MakeVolume(t.Context(), engine.Volume{Name: "v", Bytes: mib})
	if !errors.Is(err, engine.ErrUnenforceable) || !strings.Contains(err.Error(), "put in its place") {
		t.Errorf("a data directory that others can replace: %v", err)
	}
	wantOutput(t, createLive(t, s.Service, engine.Spec{}), "echo x", "x\n")
	if err := os.Chmod(parent, 0o700); err != nil {
		t.Fatal(err)
	}
	s.make("v", mib, 0, "/x")
}

// TestDataDirectoryIsNoSource: what root keeps there must not be anybody's to write.
func TestDataDirectoryIsNoSource(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	s.make("v", mib, 0, "/x")
	for _, source := range []string{s.data, filepath.Dir(s.data), s.data + "/v.img", s.dir} {
		if _, err := s.Create(t.Context(), engine.Spec{Mounts: []engine.Mount{{Source: source, Target: "/x"}}}); err == nil {
			t.Errorf("%s was mounted", source)
		}
		if f, err := s.OpenDirectory(t.Context(), engine.Directory{Path: source, Within: "/"}); err == nil {
			f.Close()
			t.Errorf("%s was opened", source)
		}
		if f, err := s.OpenDirectory(t.Context(), engine.Directory{Path: s.data + "/x/y", Within: "/", Make: true}); err == nil {
			f.Close()
			t.Error("a directory was made there")
		}
	}
}

// TestDataDirectoryMoves: a launcher that keeps its volumes elsewhere makes room for one
// that keeps them where it is asked to; the boxes stay.
func TestDataDirectoryMoves(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	m := s.make("old", 4*mib, 0, "/data")
	b := createLive(t, s.Service, engine.Spec{ID: "stays", Mounts: []engine.Mount{m}})
	wantOutput(t, b, "echo x > /data/x", "")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	old := s.data
	s.data = filepath.Join(filepath.Dir(old), "elsewhere")
	s.start()
	if list, err := s.Volumes(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("volumes elsewhere: %v, %v", list, err)
	}
	b = adoptLive(t, s.Service, "stays")
	wantOutput(t, b, "cat /data/x", "x\n")
	wantVolumeFull(t, run(t, b, engine.Command{Args: []string{"sh", "-c", fillBytes, "/data"}}), "/data 4 MiB")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.data = old
	s.start()
	if err := s.RemoveVolume(t.Context(), "old"); err == nil || !strings.Contains(err.Error(), "stays") {
		t.Errorf("removing a volume that a box has kept: %v", err)
	}
}
