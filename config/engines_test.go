package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/engine"
)

// TestProgramsAreRoots: what root passes to the launcher comes only from a file that root alone can write.
func TestProgramsAreRoots(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root passes programs on")
	}
	path := filepath.Join(t.TempDir(), "boxd.yaml")
	for _, c := range []struct{ text, field string }{
		{"oci: {runtime: /usr/bin/runc}\n", "oci.runtime"},
		{"oci: {gvisor: /usr/local/bin/runsc}\n", "oci.gvisor"},
		{"containerd: {address: /run/x.sock}\n", "containerd.address"},
		{"containerd: {runtime: io.containerd.runc.v2}\n", "containerd.runtime"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		for mode, refused := range map[os.FileMode]bool{0o644: false, 0o664: true, 0o646: true} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			_, err := Load(path, nil)
			bad, ok := errors.AsType[*engine.FieldError](err)
			if ok != refused || ok && bad.Field != c.field || !ok && err != nil {
				t.Errorf("%s mode %o: %v", c.text, mode, err)
			}
		}
	}
}
