package faults

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStuckLeftover: what cannot be removed now, like the cgroup of a process that
// SIGKILL does not reach, keeps nobody from making boxes; it is said, it stays on
// record with its id range, and is removed once that is possible.
func TestStuckLeftover(t *testing.T) {
	binaries(t)
	state := newState(t)
	var work string
	for _, m := range mountLines(t) {
		if strings.Contains(m, " - cgroup2 ") {
			work = filepath.Join(strings.Fields(m)[4], "boxd", "stuck.b1", "work")
		}
	}
	box, lease := filepath.Join(state, "run-stuck", "boxes", "b1"), filepath.Join(state, "ids", "7")
	err := errors.Join(os.MkdirAll(work, 0o755), os.MkdirAll(box, 0o711), os.Mkdir(filepath.Join(state, "ids"), 0o711), os.Symlink("run-stuck/b1", lease))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // where the test failed; else all is gone
		_ = unix.Unmount(work, unix.MNT_DETACH)
		_ = errors.Join(os.Remove(work), os.Remove(filepath.Dir(work)))
	})
	// A cgroup that something is mounted on cannot be removed.
	if err := unix.Mount("boxd-test", work, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		wantRunBesides(t, state, "b1")
		for _, path := range []string{box, lease} {
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("the record of a box that is not gone: %v", err)
			}
		}
	}
	if err := unix.Unmount(work, 0); err != nil {
		t.Fatal(err)
	}
	follow(t, state)
	wantNothingLeft(t, state, []string{"b1"})
	if _, err := os.Lstat(lease); err == nil {
		t.Error("an id range is still leased to a box that is gone")
	}
}

// wantRunBesides runs a command although a box cannot be removed, which one line
// has to say.
func wantRunBesides(t *testing.T, state, stuck string) {
	t.Helper()
	boxd, boxdInit := binaries(t)
	cmd := exec.Command(boxd, "run", "--init", boxdInit, "--state-dir", state, "--", "echo", "done")
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := runBounded(cmd, patience)
	said := stderr.String()
	if err != nil || stdout.String() != "done\n" || strings.Count(said, "\n") != 1 || !strings.Contains(said, `"`+stuck+`"`) {
		t.Errorf("%v, stdout %q, stderr %q, want one line about box %q", err, stdout.String(), said, stuck)
	}
}
