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
	if Full() {
		return script(t, "runsc")
	}
	path := script(t, "runsc", "path")
	if _, err := os.Stat(path); err != nil {
		t.Skip("there is no runsc: .ci/runsc builds it")
	}
	return path
}

// CurrentContainerd returns the path of containerd as .ci/containerd builds it, with its shim and ctr beside
// it. Only in full does a test use it.
func CurrentContainerd(t testing.TB) string {
	t.Helper()
	RequireRoot(t)
	if !Full() {
		t.Skip("a current containerd is built and used by make full only")
	}
	return filepath.Join(script(t, "containerd"), "containerd")
}

// script runs a script of .ci and returns what it prints.
func script(t testing.TB, name string, args ...string) string {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(root, ".ci", name), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf(".ci/%s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}
