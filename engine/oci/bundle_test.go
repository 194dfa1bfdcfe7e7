package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestConfigGolden compares the whole configuration.
func TestConfigGolden(t *testing.T) {
	compareGolden(t, "config.golden.json", Config(Box{
		Root: "/state/root", Dev: "/state/dev", UserNS: "/proc/1/fd/8", IDBase: 1 << 20, IDs: 1 << 16,
		Hostname: "golden", Args: []string{"/proc/self/fd/4", "agent"}, Env: []string{"HOME=/"}, UID: 65535,
		Capabilities: []string{"CAP_KILL"}, Masked: []string{"/proc/kcore"}, ReadOnly: []string{"/proc/sys"},
	}))
}

// compareGolden compares v, as JSON, with a file of testdata, so that every change shows. To accept one:
// BOXD_UPDATE=1 go test ./engine/oci.
func compareGolden(t *testing.T, name string, v any) {
	t.Helper()
	got, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	path := filepath.Join("testdata", name)
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
