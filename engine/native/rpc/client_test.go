package rpc

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The client is one process, not a number, and is not replaced while it lives.
func TestNameClient(t *testing.T) {
	dir := t.TempDir()
	if c, err := ReadClient(dir); err != nil || c.Is(os.Getpid()) || c.Is(0) {
		t.Errorf("without a file: %+v, %v", c, err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := NameClient(dir, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	c, err := ReadClient(dir)
	if err != nil || !c.Is(cmd.Process.Pid) || c.Is(os.Getpid()) {
		t.Errorf("%+v, %v, want process %d", c, err, cmd.Process.Pid)
	}
	for what, other := range map[string]Client{
		"an earlier process of that number": {c.BootID, c.PID, c.Start - 1},
		"a process of another boot":         {"x", c.PID, c.Start},
	} {
		if other.Is(cmd.Process.Pid) {
			t.Errorf("%s is taken for this one", what)
		}
	}
	if err := NameClient(dir, os.Getpid()); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("replacing a client that lives: %v", err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if err := NameClient(dir, os.Getpid()); err != nil {
		t.Errorf("replacing one that has ended: %v", err)
	}
	info, err := os.Stat(dir + "/" + ClientFile)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}
