package native

import (
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// hostID is the id on the host of the box's user 0.
func hostID(t testing.TB, b engine.Box) int {
	t.Helper()
	p := begin(t, b, engine.Command{Args: []string{"sleep", "3600"}})
	defer wait(t, p)
	defer func() {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}()
	pids := commands(t, b)
	if len(pids) != 1 {
		t.Fatalf("commands in the box: %q, want one", pids)
	}
	var st syscall.Stat_t
	if err := syscall.Stat("/proc/"+pids[0], &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Uid)
}

// createWritable is create for a box with a writable root, if there can be one: see
// boxtest.WantNoWritableRoot.
func createWritable(t testing.TB, e engine.Engine, spec engine.Spec) (b engine.Box, ok bool) {
	t.Helper()
	spec.WritableRoot = true
	b, err := e.Create(t.Context(), spec)
	if err != nil {
		boxtest.WantNoWritableRoot(t, err)
		return nil, false
	}
	t.Cleanup(func() { remove(t, b) })
	return b, true
}

// TestHugePages: on a host that uses huge pages wherever possible, the agent has none; commands have them as on
// the host.
func TestHugePages(t *testing.T) {
	b := create(t, start(t), engine.Spec{})
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^THP_enabled:.*$`)
	want := string(line.Find(own))
	if want == "" {
		t.Fatal("no THP_enabled in /proc/self/status, which is there since Linux 5.0")
	}
	if got := strings.TrimSpace(run(t, b, shell("grep THP_enabled /proc/self/status")).Stdout); got != want {
		t.Errorf("a command has %q, want %q", got, want)
	}
	for _, pid := range initPIDs(t, b) {
		rollup, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
		if err != nil {
			t.Fatal(err)
		}
		if huge := regexp.MustCompile(`(?m)^AnonHugePages: +0 kB$`); !huge.Match(rollup) {
			t.Errorf("PID 1: %s", rollup)
		}
	}
}
