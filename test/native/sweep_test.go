package native

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
)

// TestSweepSparesTheLiving: what a dead launcher left is removed by its owner's
// name, so that a box of the same id that lives elsewhere is not mistaken for it.
func TestSweepSparesTheLiving(t *testing.T) {
	for _, c := range []struct {
		name  string
		other bool // the dead launcher had another state directory
	}{{"one state directory", false}, {"two state directories", true}} {
		t.Run(c.name, func(t *testing.T) {
			state := stateDir(t)
			b := create(t, startIn(t, state), engine.Spec{ID: "twice"})
			if c.other {
				state = stateDir(t)
			}
			// A launcher was killed after it had reserved the id.
			if err := os.MkdirAll(filepath.Join(state, "run-dead", "boxes", "twice"), 0o711); err != nil {
				t.Fatal(err)
			}
			second := create(t, startIn(t, state), engine.Spec{ID: "twice"})
			select {
			case <-b.Done():
				t.Error("a box was killed by the sweep for another of the same id")
			default:
			}
			wantOutput(t, b, "echo first", "first\n")
			wantOutput(t, second, "echo second", "second\n")
		})
	}
}

// TestSweepProof: a launcher that is killed while it proves what the kernel counts leaves
// a cgroup that is no box's. The next one removes it with the rest.
func TestSweepProof(t *testing.T) {
	state := stateDir(t)
	h, err := cgroups.Detect()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	on := cmp.Or(h.Mountpoint("memory"), h.Mountpoint(""))
	dead := fmt.Sprintf("dead%d", os.Getpid())
	left := filepath.Join(on, cgroups.Path(dead+"-sockets"))
	for _, dir := range []string{filepath.Join(state, "run-"+dead, "boxes"), filepath.Join(left, "work")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	startIn(t, state)
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", left, err)
	}
}

// TestSweepStoppedService: before boxd is uninstalled, the boxes of the stopped service are ended. A service that
// runs, and a box of another launcher, are left alone.
func TestSweepStoppedService(t *testing.T) {
	s, dir := newService(t)
	b := createLive(t, s, engine.Spec{ID: "left-behind"})
	host, err := cgroups.Detect()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	group := func() bool {
		t.Helper()
		names, err := host.List()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, ".left-behind") })
	}
	other := create(t, startIn(t, dir), engine.Spec{ID: "other"})
	sweep := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), initPath(t), "sweep", "--state-dir", dir).CombinedOutput()
		return string(out), err
	}
	if out, err := sweep(); err == nil || !strings.Contains(out, "another launcher service is at work") {
		t.Errorf("while the service runs: %v, %q", err, out)
	}
	wantOutput(t, b, "echo here", "here\n")
	if err := s.Stop(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if !group() {
		t.Fatal("the box did not outlive its launcher")
	}
	for range 2 { // nothing to do is fine
		if out, err := sweep(); err != nil || out != "" {
			t.Fatalf("%v, %q", err, out)
		}
	}
	if group() {
		t.Error("the cgroup of the box is still there")
	}
	if left, err := filepath.Glob(filepath.Join(dir, "run-*", "service")); err != nil || len(left) > 0 {
		t.Errorf("service %q, %v", left, err)
	}
	if leases, err := os.ReadDir(filepath.Join(dir, "ids")); err != nil || len(leases) != 1 {
		t.Errorf("id ranges in use: %v, %v, want that of the other box", leases, err)
	}
	wantOutput(t, other, "echo other", "other\n")
	if out, err := exec.CommandContext(t.Context(), initPath(t), "sweep", "--state-dir", filepath.Join(dir, "none")).CombinedOutput(); err != nil {
		t.Errorf("without a state directory: %v, %s", err, out)
	}
}
