package oci

import "testing"

// TestGuestGolden compares what runsc is told with testdata/guest.golden.json, like TestConfigGolden.
func TestGuestGolden(t *testing.T) {
	g := Guest{
		Hostname: "golden", Root: "/sys/root", Init: "/sys/init", State: "/sys/state", Bundle: "/sys/bundle",
		Mounts: []GuestMount{{Target: "/tmp"}, {Target: "/workspace"}, {Target: "/workspace/data", ReadOnly: true}},
	}
	compareGolden(t, "guest.golden.json", map[string]any{
		"config": g.Config(), "process": g.Process(),
		"run": g.RunArgs("/sys/pid"), "exec": g.ExecArgs("/sys/process.json", [][2]int{{3, 3}, {5, 0}}),
	})
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
