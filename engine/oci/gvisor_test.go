package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestGuestGolden compares what runsc is told with testdata/guest.golden.json, like TestConfigGolden.
func TestGuestGolden(t *testing.T) {
	g := Guest{
		Hostname: "golden", Root: "/sys/root", Init: "/sys/init", State: "/sys/state", Bundle: "/sys/bundle",
		Mounts: []GuestMount{{Target: "/tmp"}, {Target: "/workspace"}, {Target: "/workspace/data", ReadOnly: true}},
	}
	got, err := json.MarshalIndent(map[string]any{
		"config": g.Config(), "process": g.Process(),
		"run": g.RunArgs("/sys/pid"), "exec": g.ExecArgs("/sys/process.json", [][2]int{{3, 3}, {5, 0}}),
	}, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	path := filepath.Join("testdata", "guest.golden.json")
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
		t.Errorf("differs from %s:\n%s", path, got)
	}
}

// TestGuestAccess: what others can change as well is never read from a cache of the sandbox.
func TestGuestAccess(t *testing.T) {
	for writable, want := range map[bool]string{false: "--file-access=exclusive", true: "--file-access=shared"} {
		args := Guest{Writable: writable}.RunArgs("pid")
		found := false
		for _, a := range args {
			found = found || a == want
		}
		if !found {
			t.Errorf("writable root %v: %q, want %s", writable, args, want)
		}
		if ro := (Guest{Writable: writable}).Config().Root.Readonly; ro == writable {
			t.Errorf("writable root %v: read-only is %v", writable, ro)
		}
	}
}
