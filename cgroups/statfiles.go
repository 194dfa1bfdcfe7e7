package cgroups

import (
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// The files of [Slot.Stats], in this order. A file that this host does not have is nil.
const (
	StatEvents       = iota // cgroup.events: populated
	StatCPU                 // cpu.stat of the slot; cgroup2 has it without a controller
	StatThrottled           // cpu.stat.local of the slot (Linux 6.6)
	StatMemoryPeak          // memory.peak (Linux 5.19), memory.max_usage_in_bytes
	StatMemoryEvents        // memory.events, memory.oom_control: oom_kill
	StatPIDsPeak            // pids.peak (Linux 6.1)
	StatPIDsEvents          // pids.events of the slot, if it counts the slot's refused forks
	StatIO                  // io.stat
	StatBoxCPU              // cpu.stat of the box's work, if there is no StatThrottled
	StatBoxPIDs             // pids.events of the box's work, if there is no StatPIDsEvents
	StatCharge              // memory.memsw.usage_in_bytes, only on v1, for [SlotStats.Renew]
	StatBoxEvents           // cgroup.events of the box's work, if there is StatCharge
	NumStats
)

// statFile names the file with one figure on cgroup2 and on v1.
type statFile struct {
	controller string // "" is cgroup2 itself
	v2, v1     string
	// insteadOf, unless 0, means that this is a file of the box's work, which is opened if
	// the slot lacks the file insteadOf.
	insteadOf int
}

var statFiles = [NumStats]statFile{
	StatEvents:       {"", "cgroup.events", "", 0},
	StatCPU:          {"", "cpu.stat", "", 0},
	StatThrottled:    {"cpu", "cpu.stat.local", "", 0},
	StatMemoryPeak:   {"memory", "memory.peak", "memory.max_usage_in_bytes", 0},
	StatMemoryEvents: {"memory", "memory.events", "memory.oom_control", 0},
	StatPIDsPeak:     {"pids", "pids.peak", "pids.peak", 0},
	StatPIDsEvents:   {"pids", "pids.events", "pids.events", 0},
	StatIO:           {"io", "io.stat", "", 0},
	StatBoxCPU:       {"cpu", "cpu.stat", "cpu.stat", StatThrottled},
	StatBoxPIDs:      {"pids", "pids.events", "pids.events", StatPIDsEvents},
	StatCharge:       {"memory", "", "memory.memsw.usage_in_bytes", 0},
	StatBoxEvents:    {"", "cgroup.events", "", 0},
}

// openStats opens the files of the slot at slot.
func (g *Group) openStats(slot string) ([]*os.File, error) {
	files := make([]*os.File, NumStats)
	for i, spec := range statFiles {
		t, name := g.v2, spec.v2
		if v1 := g.v1Tree(spec.controller); v1 != nil {
			t, name = v1, spec.v1
		}
		if name == "" || i == StatPIDsEvents && g.pidsCountedAtLimit(t, slot) {
			continue
		}
		in := slot
		if i == StatBoxEvents {
			if files[StatCharge] == nil {
				continue
			}
			in = "work"
		}
		if spec.insteadOf > 0 {
			if files[spec.insteadOf] != nil {
				continue
			}
			in = "work"
		}
		f, err := openStat(t.box, in+"/"+name, i)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return files, err
		}
		files[i] = f
	}
	return files, nil
}

// openStat opens one file. Only cgroup.events is opened for the runtime's poller, because
// nothing waits for changes of the others. v1's peak of memory is opened for writing as well,
// which resets it.
func openStat(dir *os.File, name string, i int) (*os.File, error) {
	switch {
	case i == StatEvents:
		return openEvents(dir, name)
	case i == StatMemoryPeak && path.Base(name) == statFiles[i].v1:
		return linux.OpenAt(dir, name, unix.O_RDWR)
	}
	return linux.OpenAt(dir, name, unix.O_RDONLY)
}

// pidsCountedAtLimit reports whether the kernel counts a refused fork in the cgroup whose
// limit was hit, which all commands share. It does so on cgroup2 since Linux 6.11, which
// also has pids.events.local (kernel commit 73e75e6fc352). On v1, on older kernels and with
// the mount option pids_localevents, it counts the fork in the cgroup of the forking task.
func (g *Group) pidsCountedAtLimit(t *tree, path string) bool {
	return !t.on.v1 && !g.host.localPIDs && exists(t.box, path+"/pids.events.local")
}
