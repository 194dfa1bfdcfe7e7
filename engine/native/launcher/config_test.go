package launcher

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/rootfs"
)

// TestConfigGolden compares the whole configuration that libcontainer gets, so that every
// change shows. To accept one: BOXD_UPDATE=1 go test ./engine/native/launcher.
func TestConfigGolden(t *testing.T) {
	spec := engine.Spec{Hostname: "golden"}.WithDefaults()
	got, err := json.MarshalIndent(config(spec, "box-1", "/state/root", "/state/dev", "/proc/1/fd/8", "/proc/1/fd/9", idBase), "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	path := filepath.Join("testdata", "config.golden.json")
	if os.Getenv("BOXD_UPDATE") != "" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("config differs from %s:\n%s", path, got)
	}
}

// Packages that may not import each other must agree on paths and ids.
func TestSharedConstants(t *testing.T) {
	if rootfs.HomeDir != engine.HomeTarget {
		t.Errorf("home is %q in rootfs and %q in engine", rootfs.HomeDir, engine.HomeTarget)
	}
	if rootfs.DefaultHostname != spec.DefaultHostname {
		t.Errorf("hostname is %q in rootfs and %q in engine", rootfs.DefaultHostname, spec.DefaultHostname)
	}
	if agentID >= idRange || agentID <= engine.MaxID {
		t.Errorf("PID 1 has id %d, commands have up to %d of %d", agentID, engine.MaxID, idRange)
	}
	if last := idBase + (idRanges+1)*idRange; last > 1<<31 {
		t.Errorf("id ranges end at %d, above 2^31", last)
	}
}

func TestLeases(t *testing.T) {
	dir := t.TempDir()
	seen := map[int]bool{}
	var leases []*idLease
	for range 50 {
		l, err := leaseIDs(dir, "run-1/box")
		if err != nil {
			t.Fatal(err)
		}
		if seen[l.Base] || l.Base < idBase || (l.Base-idBase)%idRange != 0 {
			t.Fatalf("lease of %d", l.Base)
		}
		seen[l.Base] = true
		leases = append(leases, l)
	}
	if err := leases[0].release(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		instance string
		keep     map[string]error
		left     int
	}{
		{"run-2", nil, 49},
		{"run-", nil, 49},
		{"run-1", map[string]error{"box": fs.ErrExist}, 49},
		{"run-1", map[string]error{"box2": fs.ErrExist}, 0},
	} {
		if err := sweepLeases(dir, c.instance, c.keep); err != nil {
			t.Error(err)
		}
		if n := entries(t, dir); n != c.left {
			t.Errorf("%d leases after a sweep for %q but %v, want %d", n, c.instance, c.keep, c.left)
		}
	}
}

func entries(t *testing.T, dir string) int {
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
