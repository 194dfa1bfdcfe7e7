package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestSealedBinary: libcontainer executes the launcher's own sealed memory file
// for every box and never takes the path on which it copies the binary, which would be another memfd
// (runc's exeseal), or an overlay. PID 1 of each box runs one inode, which is sealed as well, and is
// neither the launcher's nor the installed file.
func TestSealedBinary(t *testing.T) {
	testutil.Long(t)
	_, initPath := testutil.BuildBinaries(t)
	before := descendants(t)
	e := start(t)
	var launcher string
	for pid := range descendants(t) {
		if _, old := before[pid]; !old {
			launcher = pid
		}
	}
	exe := "/proc/" + launcher + "/exe"
	target, err := os.Readlink(exe)
	if err != nil || !strings.HasPrefix(target, "/memfd:boxd-init") {
		t.Fatalf("launcher runs %q, %v, want a memfd", target, err)
	}
	first := identity(t, exe)
	if first == identity(t, initPath) {
		t.Error("launcher runs the file itself")
	}
	wantSealed(t, exe)
	agent := ""
	for range 5 {
		b := create(t, e, engine.Spec{})
		pids := initPIDs(t, b)
		if len(pids) == 0 {
			t.Fatalf("box %s: no process in its cgroup init", b.ID())
		}
		for _, pid := range pids {
			exe := "/proc/" + pid + "/exe"
			got := identity(t, exe)
			if agent == "" {
				agent = got
			}
			target, err := os.Readlink(exe)
			if err != nil || !strings.HasPrefix(target, "/memfd:boxd-agent") || got == first || got != agent {
				t.Errorf("PID 1 of a box runs %s, %s, %v; that of another box %s, and the launcher %s", target, got, err, agent, first)
			}
			wantSealed(t, exe)
		}
	}
	// Nor has the launcher opened or mapped another one.
	maps, err := os.ReadFile("/proc/" + launcher + "/maps")
	if err != nil || strings.Contains(string(maps), "runc_cloned") {
		t.Errorf("launcher maps a copy: %v", err)
	}
	links, _ := filepath.Glob("/proc/" + launcher + "/fd/*")
	for _, l := range links {
		if target, _ := os.Readlink(l); strings.Contains(target, "runc_cloned") {
			t.Errorf("launcher holds %q", target)
		}
	}
}

// TestStateBelowBinary: there libcontainer would copy without a word, so it is
// refused.
func TestStateBelowBinary(t *testing.T) {
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	for _, dir := range []string{filepath.Dir(initPath), filepath.Join(filepath.Dir(initPath), "state")} {
		e, err := startWith(t, initPath, dir)
		if err == nil {
			e.Close()
		}
		if !errors.Is(err, engine.ErrNoLauncher) || !strings.Contains(err.Error(), dir) {
			t.Errorf("state directory %q: %v", dir, err)
		}
	}
}

func identity(t *testing.T, path string) string {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("device %d inode %d", st.Dev, st.Ino)
}

// wantSealed checks that no user, root included, can change the file any more.
func wantSealed(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const all = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&all != all {
		t.Errorf("seals %#x, %v, want %#x", seals, err, all)
	}
	if w, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
		if _, err := w.WriteAt([]byte("x"), 0); err == nil {
			t.Error("the binary of a launcher could be written to")
		}
		w.Close()
	} else if !errors.Is(err, unix.ETXTBSY) && !errors.Is(err, unix.EPERM) {
		t.Errorf("opening for writing: %v", err)
	}
}

// descendants are the children of this process, by pid.
func descendants(t *testing.T) map[string]bool {
	t.Helper()
	list := map[string]bool{}
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		content, _ := os.ReadFile(f)
		for _, pid := range strings.Fields(string(content)) {
			if _, err := strconv.Atoi(pid); err == nil {
				list[pid] = true
			}
		}
	}
	return list
}
