package testutil

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// StartChild starts cmd, whose standard input ends with the test, which then waits for cmd.
// It returns its standard output.
func StartChild(t testing.TB, cmd *exec.Cmd) (stdout io.Reader) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err = cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait() // a test that minds the status waits itself
	})
	return stdout
}

// CopyOfSelf returns a directory that every user of a box can reach, with the test binary in
// it under this name.
func CopyOfSelf(t testing.TB, name string) string {
	t.Helper()
	dir := t.TempDir()
	binary, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), binary, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
