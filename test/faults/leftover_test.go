package faults

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// leftInState lists what a state directory holds beyond what lasts: the lock and
// the directory of leases.
func leftInState(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if rel != "." && rel != "lock" && rel != "ids" && err == nil {
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		t.Errorf("reading the state directory: %v", err)
	}
	return names
}

// boxIDs names the boxes that a state directory knows of now.
func boxIDs(dir string) []string {
	paths, _ := filepath.Glob(filepath.Join(dir, "run-*/boxes/*"))
	for i, p := range paths {
		paths[i] = filepath.Base(p)
	}
	return paths
}

// hierarchies are the mount points of all cgroup trees.
func hierarchies(t testing.TB) []string {
	t.Helper()
	var dirs []string
	for _, m := range mountLines(t) {
		if f := strings.Fields(m); len(f) > 4 && strings.Contains(m, " - cgroup") {
			dirs = append(dirs, f[4])
		}
	}
	return dirs
}

func mountLines(t testing.TB) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// wantNothingLeft checks that a state directory is empty and that the boxes named
// have no cgroup on any hierarchy, nor a mount on the host.
func wantNothingLeft(t testing.TB, state string, ids []string) {
	t.Helper()
	for _, name := range leftInState(t, state) {
		t.Errorf("left in the state directory: %s", name)
	}
	for _, dir := range hierarchies(t) {
		left, _ := filepath.Glob(filepath.Join(dir, "boxd", "*"))
		for _, path := range left {
			// Its name may say whose box it is, before a dot.
			_, id, ok := strings.Cut(filepath.Base(path), ".")
			if !ok {
				id = filepath.Base(path)
			}
			if slices.Contains(ids, id) {
				t.Errorf("cgroup left: %s", path)
			}
		}
	}
	for _, m := range mountLines(t) {
		if strings.Contains(m, state) {
			t.Errorf("mount left: %s", m)
		}
	}
}

// follow runs "boxd run -- true" on a state directory, which is to remove what
// others left there.
func follow(t testing.TB, state string) {
	t.Helper()
	boxd, boxdInit := binaries(t)
	cmd := exec.Command(boxd, "run", "--init", boxdInit, "--state-dir", state, "--", "true")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := runBounded(cmd, patience); err != nil || out.Len() > 0 {
		t.Errorf("the following run: %v, output %q", err, out.String())
	}
}

// patience is how long anything may take on a loaded or emulated machine before
// it counts as hanging.
const patience = 60 * time.Second

// runBounded is cmd.Run that kills what takes longer than limit.
func runBounded(cmd *exec.Cmd, limit time.Duration) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	return cmd.Wait()
}
