package cgroups

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// mends says what to do about each limit that cannot be enforced.
var mends = map[string]string{
	"memory": "boot with cgroup_enable=memory, on a kernel with CONFIG_MEMCG",
	"swap":   "turn swap off (swapoff -a), or boot with swapaccount=1",
	"pids":   "use a kernel with CONFIG_CGROUP_PIDS",
	"cpus":   "use a kernel with CONFIG_CFS_BANDWIDTH",
}

func unenforceable(limit, reason string) *UnenforceableError {
	return &UnenforceableError{Limit: limit, Reason: reason, Mend: mends[limit]}
}

// limit sets one limit, or changes nothing.
func (g *Group) limit(name string, l Limits) error {
	switch name {
	case "memory":
		return g.limitMemory(l.Memory)
	case "pids":
		return g.limitPIDs(l.PIDs)
	}
	return g.limitCPUs(l.CPUs)
}

// carrier returns the box's directory on the hierarchy of a controller.
func (g *Group) carrier(limit, controller, file string) (*tree, error) {
	for _, t := range g.trees() {
		switch {
		case !t.on.has(controller):
		case exists(t.box, "work/"+file):
			return t, nil
		case g.enableErr[controller] != nil:
			u := unenforceable(limit, g.enableErr[controller].Error())
			u.Mend = mendEnable(g.enableErr[controller])
			return nil, u
		default:
			return nil, unenforceable(limit, fmt.Sprintf("the %s controller has no %s", controller, file))
		}
	}
	return nil, unenforceable(limit, fmt.Sprintf("no hierarchy has the %s controller", controller))
}

func (g *Group) limitPIDs(n int64) error {
	t, err := g.carrier("pids", "pids", "pids.max")
	if err != nil {
		return err
	}
	work := n
	if t.on.v1 {
		work = plus(n, SpawnerThreads)
	}
	// pids.max spells "no limit" the same way on v1 and v2.
	return apply([]*knob{
		{dir: t.box, file: "pids.max", value: plus(n, headroomPIDs), style: v2Number},
		{dir: t.box, file: "work/pids.max", value: work, style: v2Number},
	})
}

func (g *Group) limitCPUs(cpus float64) error {
	file, style := "cpu.max", v2CPU
	if g.v1Tree("cpu") != nil {
		file, style = "cpu.cfs_quota_us", v1Number
	}
	t, err := g.carrier("cpus", "cpu", file)
	if err != nil {
		return err
	}
	return apply([]*knob{
		{dir: t.box, file: file, value: quota(plus(cpus, headroomCPUs)), style: style},
		{dir: t.box, file: "work/" + file, value: quota(cpus), style: style},
	})
}

func (g *Group) limitMemory(bytes int64) error {
	t, err := g.memoryTree()
	if err != nil {
		return err
	}
	left := g.lessDebitLocked(bytes)
	if !t.on.v1 {
		if err := shrinkV2(t.box, left); err != nil {
			if u, ok := errors.AsType[*InUseError](err); ok {
				u.Want, u.Usage = bytes, u.Usage+g.debit
			}
			return err
		}
	}
	err = apply(append(t.memoryKnobs("", plus(bytes, headroomMemory)), t.memoryKnobs("work/", left)...))
	if t.on.v1 && errors.Is(err, unix.EBUSY) && bytes > 0 {
		// The kernel could not reclaim enough. v1 kills nothing for a lowered limit.
		used, _ := (&knob{dir: t.box, file: "work/memory.usage_in_bytes"}).read()
		return &InUseError{Want: bytes, Usage: used + g.debit, Err: err}
	}
	return err
}

// memoryTree returns the box's directory on the hierarchy with the memory controller.
func (g *Group) memoryTree() (*tree, error) {
	if g.v1Tree("memory") == nil {
		return g.carrier("memory", "memory", "memory.max")
	}
	return g.carrier("memory", "memory", "memory.limit_in_bytes")
}

// memoryKnobs returns the knobs of a memory limit in the cgroup prefix of the box, in the order
// for raising. A limit of memsw that equals the one of memory leaves no room for swap.
func (t *tree) memoryKnobs(prefix string, value int64) (knobs []*knob) {
	if !t.on.v1 {
		return []*knob{{dir: t.box, file: prefix + "memory.max", value: value, style: v2Number}}
	}
	if exists(t.box, prefix+"memory.memsw.limit_in_bytes") {
		knobs = append(knobs, &knob{dir: t.box, file: prefix + "memory.memsw.limit_in_bytes", value: value})
	}
	return append(knobs, &knob{dir: t.box, file: prefix + "memory.limit_in_bytes", value: value})
}

// shrinkV2 brings the usage of work down to bytes, or fails. Writing memory.max would kill
// if not enough can be reclaimed. memory.high reclaims in the same way, slows growth down
// meanwhile, and kills nothing (cgroup-v2.rst, "memory.high").
func shrinkV2(box *os.File, bytes int64) (err error) {
	usage := &knob{dir: box, file: "work/memory.current"}
	used, err := usage.read()
	if err != nil || bytes < 0 || used <= bytes {
		return err
	}
	high := &knob{dir: box, file: "work/memory.high", style: v2Number}
	defer func() { err = errors.Join(err, high.set(Unlimited)) }()
	if err := high.set(bytes); err != nil {
		return err
	}
	if used, err = usage.read(); err == nil && used > bytes {
		err = &InUseError{Want: bytes, Usage: used}
	}
	return err
}

// noSwap keeps a box with a memory limit from using swap. On v1 the memory limit itself does
// that if the kernel counts swap.
func (g *Group) noSwap() error {
	if t := g.v1Tree("memory"); t != nil {
		if exists(t.box, "work/memory.memsw.limit_in_bytes") || !hostSwaps() {
			return nil
		}
		// Slots inherit swappiness. The kernel may still swap under global memory pressure.
		err := apply([]*knob{{dir: t.box, file: "memory.swappiness"}, {dir: t.box, file: "work/memory.swappiness"}})
		return errors.Join(err, unenforceable("swap", "the kernel does not count swap per cgroup (no memory.memsw.limit_in_bytes)"))
	}
	t, err := g.carrier("swap", "memory", "memory.swap.max")
	if err != nil {
		if !hostSwaps() {
			return nil
		}
		return err
	}
	return apply([]*knob{
		{dir: t.box, file: "memory.swap.max", style: v2Number},
		{dir: t.box, file: "work/memory.swap.max", style: v2Number},
	})
}

// hostSwaps reports whether this machine has a swap area. If /proc/swaps cannot be read, it
// assumes one.
func hostSwaps() bool {
	text, err := os.ReadFile("/proc/swaps")
	return err != nil || strings.Count(string(text), "\n") > 1
}

// readNumber returns the number in a file beneath dir.
func readNumber(dir *os.File, name string) (int64, error) {
	text, err := linux.ReadFileAt(dir, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(text), 10, 64)
}
