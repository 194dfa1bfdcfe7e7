package native

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
