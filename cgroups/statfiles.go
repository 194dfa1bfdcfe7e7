package cgroups

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// The files of [Slot.Stats], in this order. A nil file is one that this host does
// not have.
const (
	StatEvents       = iota // cgroup.events: populated
	StatCPU                 // cpu.stat of the slot; cgroup2 has it without a controller
	StatThrottled           // cpu.stat.local of the slot (Linux 6.6)
	StatMemoryPeak          // memory.peak (Linux 5.19), memory.max_usage_in_bytes
	StatMemoryEvents        // memory.events, memory.oom_control: oom_kill
	StatPIDsPeak            // pids.peak (Linux 6.1)
	StatPIDsEvents          // pids.events of the slot, where it counts the slot's refused forks
	StatIO                  // io.stat
	StatBoxCPU              // cpu.stat of the box's work, where the CPU limit is
	StatBoxPIDs             // pids.events of the box's work
	NumStats
)

// statFile is where one figure is on cgroup2 and on v1.
type statFile struct {
	controller string // "" is cgroup2 itself
	v2, v1     string
	box        bool // in work, not in the slot
}

var statFiles = [NumStats]statFile{
	StatEvents:       {"", "cgroup.events", "", false},
	StatCPU:          {"", "cpu.stat", "", false},
	StatThrottled:    {"cpu", "cpu.stat.local", "cpu.stat.local", false},
	StatMemoryPeak:   {"memory", "memory.peak", "memory.max_usage_in_bytes", false},
	StatMemoryEvents: {"memory", "memory.events", "memory.oom_control", false},
	StatPIDsPeak:     {"pids", "pids.peak", "pids.peak", false},
	StatPIDsEvents:   {"pids", "pids.events", "pids.events", false},
	StatIO:           {"io", "io.stat", "", false},
	StatBoxCPU:       {"cpu", "cpu.stat", "cpu.stat", true},
	StatBoxPIDs:      {"pids", "pids.events", "pids.events", true},
}

// openStats opens the files of the slot at path.
func (g *Group) openStats(path string) ([]*os.File, error) {
	files := make([]*os.File, NumStats)
	for i, spec := range statFiles {
		t, name := g.v2, spec.v2
		if v1 := g.v1Tree(spec.controller); v1 != nil {
			t, name = v1, spec.v1
		}
		if name == "" || i == StatPIDsEvents && g.pidsCountedAtLimit(t, path) {
			continue
		}
		if spec.box {
			name = "work/" + name
		} else {
			name = path + "/" + name
		}
		f, err := linux.OpenAt(t.box, name, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return files, err
		}
		files[i] = f
	}
	return files, nil
}

// pidsCountedAtLimit says where a refused fork is counted. On v1, on cgroup2
// before Linux 6.11 and with the mount option pids_localevents it is the cgroup
// of the task that wanted to fork. Since 6.11, which also has pids.events.local,
// it is the cgroup whose limit was hit, and that one is shared by all commands
// (kernel commit 73e75e6fc352).
func (g *Group) pidsCountedAtLimit(t *tree, path string) bool {
	return !t.on.v1 && !g.host.localPIDs && exists(t.box, path+"/pids.events.local")
}
