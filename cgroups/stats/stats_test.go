package stats

import (
	"testing"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

func TestOf(t *testing.T) {
	for name, metrics := range map[string]any{
		"v1": &v1.Metrics{
			Memory: &v1.MemoryStat{Usage: &v1.MemoryEntry{Usage: 1 << 20, Limit: 1 << 30}},
			Pids:   &v1.PidsStat{Current: 7, Limit: 100},
			CPU:    &v1.CPUStat{Usage: &v1.CPUUsage{Total: 3_000_000}},
		},
		"v2": &v2.Metrics{
			Memory: &v2.MemoryStat{Usage: 1 << 20, UsageLimit: 1 << 30},
			Pids:   &v2.PidsStat{Current: 7, Limit: 100},
			CPU:    &v2.CPUStat{UsageUsec: 3000}, // microseconds
		},
	} {
		u, err := Of(metrics)
		if err != nil || u.Memory == nil || *u.Memory != 1<<20 || u.PIDs == nil || *u.PIDs != 7 || (u.CPU == nil) != (name == "v1") || u.CPU != nil && *u.CPU != 3*time.Millisecond {
			t.Errorf("%s: %+v, %v", name, u, err)
		}
	}
	for name, metrics := range map[string]any{"v1": &v1.Metrics{}, "v2": &v2.Metrics{}} {
		if u, err := Of(metrics); u != (Usage{}) || err != nil {
			t.Errorf("%s without figures: %+v, %v: a missing figure is not 0", name, u, err)
		}
	}
	for _, bad := range []any{nil, v1.Metrics{}, "text"} {
		if u, err := Of(bad); err == nil {
			t.Errorf("%T: %+v and no error", bad, u)
		}
	}
}
