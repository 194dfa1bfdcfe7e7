package native

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
)

// TestSwapIsOff reads the kernel's setting, because a machine without swap would not show the difference.
func TestSwapIsOff(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{Memory: 48 * mib}})
	for _, f := range []struct {
		path string
		want string
	}{
		{"/sys/fs/cgroup/boxd/*." + b.ID() + "/work/memory.swap.max", "0"},
		{"/sys/fs/cgroup/memory/boxd/*." + b.ID() + "/work/memory.memsw.limit_in_bytes", strconv.Itoa(48 * mib)},
	} {
		found, err := filepath.Glob(f.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			got, err := os.ReadFile(path)
			if s := strings.TrimSpace(string(got)); s != f.want || err != nil {
				t.Errorf("%s is %q, %v, want %s", path, s, err, f.want)
			}
			return
		}
	}
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil || strings.Count(string(swaps), "\n") > 1 {
		t.Errorf("no swap limit is set, and the host has swap: %q, %v", swaps, err)
	}
}
