package testutil

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Runsc returns the path of gVisor's runsc as .ci/runsc builds it. It takes minutes to build, so the test
// is skipped where it is missing, unless everything runs in full.
func Runsc(t testing.TB) string {
	t.Helper()
	RequireRoot(t)
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(root, ".ci/runsc")
	run := func(args ...string) string {
		cmd := exec.Command(script, args...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		return strings.TrimSpace(string(out))
	}
	if Full() {
		return run()
	}
	path := run("path")
	if _, err := os.Stat(path); err != nil {
		t.Skip("there is no runsc: .ci/runsc builds it")
	}
	return path
}
