package testutil

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestStrangers: what this process starts never belongs to a stranger.
func TestStrangers(t *testing.T) {
	dir := t.TempDir()
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := os.WriteFile(filepath.Join(dir, "launcher"), []byte("echo ready; read -r _"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh")
	cmd.Args, cmd.Dir, cmd.ExtraFiles = []string{"boxd-init", "launcher", "x"}, dir, []*os.File{lock}
	stdout := StartChild(t, cmd)
	if _, err := stdout.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if launcher := (process{pid: cmd.Process.Pid}); !launcher.hasRole("launcher") || launcher.instance() != dir {
		t.Errorf("launcher: %v, instance %q, want %q", launcher.hasRole("launcher"), launcher.instance(), dir)
	}
	if findStrangers(allProcesses()).launchers[cmd.Process.Pid] {
		t.Error("a launcher of this very test is a stranger")
	}
}

func TestStrangersOwn(t *testing.T) {
	s := strangers{launchers: map[int]bool{7: true}, instances: []string{"/run/boxd/run-1", ""}, boxes: []string{"run-1.box-a", ""}}
	all := map[int]process{7: {pid: 7, ppid: 3}, 8: {pid: 8, ppid: 7}, 9: {pid: 9, ppid: 8}, 3: {pid: 3, ppid: 1}}
	for pid, want := range map[int]bool{7: true, 8: true, 9: true, 3: false} {
		if got := s.own(all[pid], all); got != want {
			t.Errorf("own(%s) = %v, want %v", strconv.Itoa(pid), got, want)
		}
	}
	for path, want := range map[string]bool{
		"/sys/fs/cgroup/pids/boxd/run-1.box-a/work/1": true,
		"/sys/fs/cgroup/pids/boxd/run-2.box-a":        false,
		"/sys/fs/cgroup/pids/boxd":                    false,
		"/run/boxd/run-1/lock":                        true,
		"/run/boxd/run-12":                            false,
		"run-1/box-a":                                 true, // a lease
		"":                                            false,
	} {
		if got := s.ownPath(path); got != want {
			t.Errorf("ownPath(%q) = %v, want %v", path, got, want)
		}
	}
}
