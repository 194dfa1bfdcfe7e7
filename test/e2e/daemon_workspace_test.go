package e2e

import (
	"os"
	"strings"
	"testing"
)

// TestWorkspaceElsewhere: the workspace has the place and the size that were asked for,
// and all commands find it.
func TestWorkspaceElsewhere(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "/data\n", "exec", "s", "--workspace-size", "8M", "--workspace-target", "/data", "--", "pwd")
	d.stdin = strings.NewReader("text")
	d.says(0, "", "cp", "-", "s:sub.txt")
	d.says(0, "text", "exec", "s", "--", "cat", "/data/sub.txt")
	d.says(0, "text", "cp", "s:sub.txt", "-")
	d.says(0, "", "start", "s", "--id", "p", "--", "sh", "-c", "pwd > where; exec sleep 3600")
	d.says(0, "/data\n", "exec", "s", "--", "sh", "-c", "until [ -s where ]; do sleep 0.01; done; cat where")
	full := d.run("exec", "s", "--", "dd", "if=/dev/zero", "of=big", "bs=1M")
	if full.status != 1 || !strings.Contains(full.stderr, "No space left on device") && !strings.Contains(full.stderr, "quota exceeded") {
		t.Errorf("a full workspace: %v", full)
	}
	if !strings.HasSuffix(full.stderr, "verdict: disk-quota (limit /data 8 MiB)\n") {
		t.Errorf("it is not said which limit that was: %v", full)
	}
	show := d.run("sessions", "show", "s")
	if !strings.Contains(show.stdout, "rw at /data, at most 8 MiB") {
		t.Errorf("%v", show)
	}
	d.wantRefused(125, d.run("exec", "s", "--workspace-size", "9M", "--", "true"), "workspace_size is 8 MiB, not 9 MiB")
	d.wantRefused(125, d.run("exec", "t", "--workspace-size", "1K", "--", "true"), "--workspace-size 1 KiB", "1 MiB")
	d.wantRefused(125, d.run("exec", "t", "--workspace-target", "/proc/x", "--", "true"), "--workspace-target", "/proc")
	if got := d.run("exec", "s", "--", "rm", "big"); got.status != 0 {
		t.Errorf("making room again: %v", got)
	}
}

// TestHostWorkspaceLimit: a directory of the host has a hard limit, or the request is
// refused; it is never left out silently.
func TestHostWorkspaceLimit(t *testing.T) {
	root, err := os.MkdirTemp("", "boxd-e2e-root-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	ask := []string{"exec", "s", "--workspace", root, "--workspace-size", "8M", "--workspace-target", "/data", "--", "sh", "-c", "cat /dev/zero > big"}
	d := startDaemon(t, "--allow-mount-root", root)
	if got := d.run(ask...); got.status != 1 || !strings.Contains(got.stderr, "quota exceeded") && !strings.Contains(got.stderr, "No space left") {
		d.wantRefused(125, got, "workspace_size 8 MiB", "project quota", "allow_degraded")
		if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
			t.Errorf("after the refusal: %v, %v", entries, err)
		}
	}
	d.says(0, "", "exec", "t", "--workspace", root, "--workspace-target", "/data", "--", "touch", "file")
	if _, err := os.Stat(root + "/file"); err != nil {
		t.Error(err)
	}
}
