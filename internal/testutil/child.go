package testutil

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// StartChild starts cmd and returns its standard output. At the end of the test, its standard input
// ends, and the test waits for it.
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
		cmd.Wait() // a test that needs the status waits itself
	})
	return stdout
}

// ReachableDir creates a directory in parent, "" for [os.TempDir], that every user may enter. The test
// removes it. Users of boxes cannot reach a [testing.T.TempDir], whose parent has mode 0700.
func ReachableDir(t testing.TB, parent string) string {
	t.Helper()
	dir, err := makeReachable(parent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A launcher that ends in the background may still have files in it.
		end := time.Now().Add(settleTime)
		for err = os.RemoveAll(dir); err != nil && time.Now().Before(end); err = os.RemoveAll(dir) {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return dir
}

func makeReachable(parent string) (string, error) {
	dir, err := os.MkdirTemp(parent, "boxd-test-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o711)
}

// CopyOfSelf returns a directory with a copy of the test binary under this name. It can be mounted
// into a box.
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
