package badluck

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/test/daemon"
	"golang.org/x/sys/unix"
)

// TestDiskIsNotFilled: a process that fills the shared disk is ended before the disk is full, with a
// verdict that says why, even if no measurement of workspaces shows it. Other sessions continue,
// including those with more files and those that write a little. If a host program fills the disk, all
// sessions continue.
func TestDiskIsNotFilled(t *testing.T) {
	dir := newDir(t)
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := mountImage(t, 40<<20)(state); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(state, 0); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("BOXD_SESSIONS_MIN_FREE", "50")
	d, c := daemon.ForTest(t, daemon.Config{Dir: dir, Runtime: filepath.Join(dir, "run")})
	ensure(t, c, "neighbour")
	ensure(t, c, "greedy")
	run(t, c, "neighbour", "head -c 4M /dev/zero > data")
	services := map[string]string{
		"idle":   "sleep 10000",
		"writer": "while sleep 0.1; do echo line >> log; sync log; done",
	}
	for id, line := range services {
		if _, err := c.Start(timeLimit(t), "neighbour", apitypes.ProcessRequest{ID: id, Argv: []string{"sh", "-c", line}}); err != nil {
			t.Fatal(err)
		}
	}
	goOn := func(when string) {
		t.Helper()
		for id := range services {
			if p, err := c.Process(timeLimit(t), "neighbour", id); err != nil || p.State != "running" {
				t.Errorf("the process %s of another session, %s: %+v, %v", id, when, p, err)
			}
		}
	}
	for where, line := range map[string]string{
		"in a file":             "while head -c 512k /dev/zero >> data; do sleep 0.02; done",
		"in an unlinked file":   "exec 3>data && rm data && while head -c 512k /dev/zero >&3; do sleep 0.02; done",
		"in a closed directory": "mkdir -p closed && exec 3>closed/data && chmod 0 closed && while head -c 512k /dev/zero >&3; do sleep 0.02; done",
	} {
		r, err := c.Exec(timeLimit(t), "greedy", apitypes.ExecRequest{Shell: line})
		if err != nil || r.Verdict != "disk-quota" || !strings.HasPrefix(r.Limit, "min_free") {
			t.Errorf("who fills the disk %s: %+v, %v", where, r, err)
		}
		var st syscall.Statfs_t
		if err := syscall.Statfs(state, &st); err != nil {
			t.Fatal(err)
		}
		if st.Bavail < st.Blocks/4 {
			t.Errorf("%s: %d of %d blocks are left", where, st.Bavail, st.Blocks)
		}
		goOn("while one wrote " + where)
		run(t, c, "neighbour", "echo more > more")
		run(t, c, "greedy", "chmod -f 700 closed; rm -rf data closed && echo more > more")
	}
	before, err := c.Session(timeLimit(t), "greedy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(timeLimit(t), "greedy", apitypes.ExecRequest{KeepBackground: true,
		Shell: "exec 3>data; rm data; (while head -c 512k /dev/zero >&3; do sleep 0.02; done) >/dev/null 2>&1 &"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the box to be removed in which something was left behind", func() bool {
		s, err := c.Session(timeLimit(t), "greedy")
		return err == nil && s.State == "failed"
	})
	goOn("while something left behind wrote")
	if after := ensure(t, c, "greedy"); after.Box == before.Box {
		t.Errorf("the session still has box %s", after.Box)
	}
	fill(t, filepath.Join(state, "filler"))
	waitFor(t, "the guard to tell of it", func() bool { return strings.Contains(d.LogTail(100), "something else fills the disk") })
	goOn("while the host filled the disk")
	if err := os.Remove(filepath.Join(state, "filler")); err != nil {
		t.Fatal(err)
	}
}
