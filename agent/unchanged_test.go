package agent

import (
	"os/exec"
	"testing"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// TestUnchanged: a child of this process has its limits, until somebody changes one.
func TestUnchanged(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	// Go gives programs the soft limit of open files that this process had before.
	var files unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &files); err != nil {
		t.Fatal(err)
	}
	limits := []wire.Rlimit{{Resource: unix.RLIMIT_NOFILE, Soft: files.Cur, Hard: files.Max}}
	if err := unchanged(pid, limits); err != nil {
		t.Fatalf("nothing was changed: %v", err)
	}
	for _, resource := range []int{unix.RLIMIT_FSIZE, unix.RLIMIT_AS, unix.RLIMIT_NOFILE, unix.RLIMIT_RTTIME} {
		var before unix.Rlimit
		if err := unix.Prlimit(pid, resource, nil, &before); err != nil {
			t.Fatal(err)
		}
		if err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: 7, Max: before.Max}, nil); err != nil {
			t.Fatal(err)
		}
		if err := unchanged(pid, limits); err == nil {
			t.Errorf("resource %d was lowered, and nobody noticed", resource)
		}
		if err := unix.Prlimit(pid, resource, &before, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := unchanged(pid, limits); err != nil {
		t.Errorf("everything is as before: %v", err)
	}
	if err := unchanged(1<<22+1, limits); err == nil {
		t.Error("a process that there is not is unchanged")
	}
}

// FuzzParseLimits: no text makes it panic.
func FuzzParseLimits(f *testing.F) {
	f.Add("Limit                     Soft Limit           Hard Limit           Units     \nMax cpu time              unlimited            unlimited            seconds   \n")
	f.Add("\n\n")
	f.Fuzz(func(t *testing.T, text string) { _, _ = parseLimits(text) })
}
