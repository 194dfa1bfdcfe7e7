package native

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestLongStateDir: a state directory may be deeper than the address of a socket
// is long.
func TestLongStateDir(t *testing.T) {
	testutil.Long(t)
	dir := filepath.Join(stateDir(t), strings.Repeat("deep", 40))
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) // before its parent is looked at
	e := startIn(t, dir)
	wantOutput(t, create(t, e, engine.Spec{}), "echo here", "here\n")
}

// TestMountsOfManyOwners: mounts that are gone leave nothing in the launcher, however
// many owners they had.
func TestMountsOfManyOwners(t *testing.T) {
	b := newBox(t, engine.Spec{})
	launcher := parentOf(t, initPIDs(t, b))
	const owners, kept = 30, 10
	before := openFiles(t, launcher)
	for owner := range owners {
		m := engine.Mount{Source: hostDir(t, 2000+owner, 2000+owner), Target: "/data"}
		for _, c := range []engine.Change{{Attach: []engine.Mount{m}}, {Detach: []string{m.Target}}} {
			if err := b.Update(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := openFiles(t, launcher); n > before+kept {
		t.Errorf("the launcher has %d open files after mounts of %d owners, had %d before", n, owners, before)
	}
}

// TestNoWayIntoRoot: what the caller is given to watch a writable root does not lead
// into it.
func TestNoWayIntoRoot(t *testing.T) {
	e := start(t)
	if _, ok := createWritable(t, e, engine.Spec{}); !ok {
		return
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if unix.Fstatat(fd, "etc/hostname", &st, 0) == nil {
			t.Errorf("descriptor %d leads into the root of the box", fd)
		}
	}
}

// parentOf is the parent of the one process in pids.
func parentOf(t *testing.T, pids []string) (parent int) {
	t.Helper()
	if len(pids) != 1 {
		t.Fatalf("PID 1 of the box is %q", pids)
	}
	stat, err := os.ReadFile("/proc/" + pids[0] + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	var state string
	if _, err := fmt.Sscan(rest, &state, &parent); err != nil {
		t.Fatal(err)
	}
	return parent
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
