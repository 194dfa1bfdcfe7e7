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

// TestDiskIsNotFilled: who fills the disk of all is ended before it is full, with a verdict
// that says why; others go on.
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
	_, c := startWith(t, daemon.Config{Dir: dir, Runtime: filepath.Join(dir, "run")})
	ensure(t, c, "neighbour")
	ensure(t, c, "greedy")
	run(t, c, "neighbour", "head -c 1M /dev/zero > data")
	if _, err := c.Start(timeLimit(t), "neighbour", apitypes.ProcessRequest{ID: "service", Argv: []string{"sleep", "10000"}}); err != nil {
		t.Fatal(err)
	}
	r, err := c.Exec(timeLimit(t), "greedy", apitypes.ExecRequest{Shell: "while head -c 512k /dev/zero >> data; do sleep 0.02; done"})
	if err != nil || r.Verdict != "disk-quota" || !strings.HasPrefix(r.Limit, "min_free") {
		t.Errorf("who fills the disk: %+v, %v", r, err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(state, &st); err != nil {
		t.Fatal(err)
	}
	if st.Bavail < st.Blocks/4 {
		t.Errorf("%d of %d blocks are left", st.Bavail, st.Blocks)
	}
	if p, err := c.Process(timeLimit(t), "neighbour", "service"); err != nil || p.State != "running" {
		t.Errorf("the process of another session: %+v, %v", p, err)
	}
	run(t, c, "neighbour", "echo more > more")
	run(t, c, "greedy", "rm data && echo more > more")
}
