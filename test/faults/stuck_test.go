package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/leftover"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestStuckLeftover: a leftover that cannot be removed, such as the cgroup of a process that SIGKILL does
// not end, does not prevent new boxes. The run that tries reports it in one line. Later runs neither try
// nor report, until the next try is due. The leftover stays on record with its ID range, the doctor shows
// it, and a later try removes it when that is possible.
func TestStuckLeftover(t *testing.T) {
	testutil.Long(t)
	binaries(t)
	for name, busy := range map[string]func(box, work string) string{
		"a mount on a cgroup":           func(_, work string) string { return work },
		"a mount in a box's directory":  func(box, _ string) string { return filepath.Join(box, "mnt") },
		"a mount, and a very long path": func(box, _ string) string { return filepath.Join(box, strings.Repeat("d", 250), "\n") },
	} {
		t.Run(name, func(t *testing.T) {
			state := newState(t)
			var work string
			for _, m := range mountLines(t) {
				if strings.Contains(m, " - cgroup2 ") {
					work = filepath.Join(strings.Fields(m)[4], "boxd", "stuck.b1", "work")
				}
			}
			box, lease := filepath.Join(state, "run-stuck", "boxes", "b1"), filepath.Join(state, "ids", "7")
			on := busy(box, work)
			err := errors.Join(os.MkdirAll(work, 0o755), os.MkdirAll(box, 0o711), os.MkdirAll(on, 0o711), os.Mkdir(filepath.Join(state, "ids"), 0o711), os.Symlink("run-stuck/b1", lease))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { // where the test failed; else all is gone
				_ = unix.Unmount(on, unix.MNT_DETACH)
				_ = errors.Join(os.Remove(work), os.Remove(filepath.Dir(work)))
			})
			// What something is mounted on cannot be removed.
			if err := unix.Mount("boxd-test", on, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			for try := range 2 {
				wantRunBesides(t, state, "b1")
				follow(t, state) // says nothing
				follow(t, state)
				for _, path := range []string{box, lease} {
					if _, err := os.Lstat(path); err != nil {
						t.Errorf("the record of a box that is not gone: %v", err)
					}
				}
				wantInDoctor(t, state, fmt.Sprintf(`run-stuck, of a launcher that was killed, could not be removed in %d tries: box "b1": `, try+1), "device or resource busy")
				due(t, state)
			}
			if err := unix.Unmount(on, 0); err != nil {
				t.Fatal(err)
			}
			follow(t, state)
			wantNothingLeft(t, state, []string{"b1"})
			if _, err := os.Lstat(lease); err == nil {
				t.Error("an id range is still leased to a box that is gone")
			}
		})
	}
}

// due lets the next launcher try again what could not be removed.
func due(t *testing.T, state string) {
	t.Helper()
	path := leftover.Path(state, "run-stuck")
	r := leftover.Read(state, "run-stuck")
	if r == nil {
		t.Fatal("there is no record")
	}
	if !r.Next.After(time.Now()) {
		t.Errorf("the next try is due at %v: no pause", r.Next)
	}
	r.Next = time.Time{}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// wantInDoctor looks for a leftover in the doctor's report.
func wantInDoctor(t *testing.T, state string, parts ...string) {
	t.Helper()
	boxd, boxdInit := binaries(t)
	out, err := exec.Command(boxd, "doctor", "--json", "--init", boxdInit, "--state-dir", state).Output()
	var report struct {
		Checks []struct{ Name, Status, Detail, Mend string }
	}
	if jerr := json.Unmarshal(out, &report); jerr != nil {
		t.Fatalf("%v, %v: %s", err, jerr, out)
	}
	for _, c := range report.Checks {
		if c.Name != "leftover" {
			continue
		}
		for _, part := range parts {
			if !strings.Contains(c.Detail, part) {
				t.Errorf("the doctor says %q, want %q in it", c.Detail, part)
			}
		}
		if c.Status != "degraded" || !strings.Contains(c.Mend, "umount") {
			t.Errorf("the doctor says %+v", c)
		}
		return
	}
	t.Errorf("the doctor lists no leftover: %s", out)
}

// wantRunBesides runs a command although a box cannot be removed, which one line of at
// most 200 characters has to say.
func wantRunBesides(t *testing.T, state, stuck string) {
	t.Helper()
	boxd, boxdInit := binaries(t)
	cmd := exec.Command(boxd, "run", "--init", boxdInit, "--state-dir", state, "--", "echo", "done")
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := runBounded(cmd, patience)
	said := stderr.String()
	if err != nil || stdout.String() != "done\n" || strings.Count(said, "\n") != 1 || len(said) > 201 || !strings.Contains(said, `"`+stuck+`"`) {
		t.Errorf("%v, stdout %q, stderr %q, want one line about box %q", err, stdout.String(), said, stuck)
	}
}
