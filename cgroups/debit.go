package cgroups

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Debit lowers the memory limit of the box's commands by bytes, the memory that the box holds
// outside its charge; 0 lifts the debit. The limit on record stays: [Group.Limits] does not
// change, and [Group.Set] takes the debit into account. For a box without a memory limit,
// Debit does nothing.
//
// If the commands use more than is left, cgroup2 kills at once, as for any lowered
// memory.max. v1 refuses instead: the error is an [InUseError], and nothing has changed.
func (g *Group) Debit(bytes int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	limit := g.limits.normal().Memory
	if limit < 0 {
		return nil
	}
	t, err := g.memoryTree()
	if err != nil {
		return nil // no memory limit is in force, and the caller has accepted that
	}
	old := g.debit
	g.debit = bytes
	work := t.memoryKnobs("work/", g.lessDebitLocked(limit))
	if t.on.v1 {
		err = apply(work)
	} else {
		// Write it even if it stays the same: a signal may have ended the kernel's loop that
		// kills.
		err = work[0].set(work[0].value)
	}
	if err == nil {
		return nil
	}
	g.debit = old
	if errors.Is(err, unix.EBUSY) {
		used, _ := (&knob{dir: t.box, file: "work/memory.usage_in_bytes"}).read()
		return &InUseError{Want: limit, Usage: used + bytes, Err: err}
	}
	return err
}

// lessDebitLocked returns the part of a memory limit that is left to the commands. The caller
// holds g.mu.
func (g *Group) lessDebitLocked(limit int64) int64 {
	if limit < 0 {
		return limit
	}
	left := max(limit-g.debit, 0)
	return left - left%int64(os.Getpagesize())
}

// MemoryUse returns how many bytes the commands of the box are charged for, 0 if this host
// does not count them.
func (g *Group) MemoryUse() (int64, error) {
	n, err := g.figure("memory", "memory.current", "memory.usage_in_bytes", "")
	return value(n), ignoreGone(err)
}

// Sockets returns how many bytes of socket buffers the commands of the box are charged for:
// "sock" in memory.stat or, on v1, the usage of memory.kmem.tcp, which includes UDP. excess is
// the part above the bound, which exists only on v1: a TCP socket gets its first buffer in
// each direction regardless of the bound (sk_forced_mem_schedule in net/ipv4/tcp_output.c).
// Both are 0 if the kernel does not charge socket buffers.
func (g *Group) Sockets() (charge, excess int64, err error) {
	if t := g.v1Tree("memory"); t != nil {
		if charge, err = readNumber(t.box, "work/"+socketUsage); err != nil {
			return 0, 0, ignoreGone(err)
		}
		bound, err := readNumber(t.box, "work/"+socketLimit)
		if err != nil {
			return charge, 0, ignoreGone(err)
		}
		return charge, max(charge-bound, 0), nil
	}
	if !g.v2.on.has("memory") {
		return 0, 0, nil
	}
	text, err := linux.ReadFileAt(g.v2.box, "work/memory.stat")
	if err != nil {
		return 0, 0, ignoreGone(err)
	}
	n, err := findNumber(text, "sock")
	return value(n), 0, err
}

// PIDs lists the processes of all commands of the box.
func (g *Group) PIDs() ([]int, error) {
	slots, err := g.Slots()
	if err != nil {
		return nil, ignoreGone(err)
	}
	var all []int
	for _, slot := range slots {
		pids, err := readPIDs(g.v2.box, "work/"+slot+"/cgroup.procs")
		if err != nil && !gone(err) {
			return nil, err
		}
		all = append(all, pids...)
	}
	return all, nil
}

// LargestSlot returns the slot to kill for a debit: the one whose processes hold more than half
// of the debit outside the charge, or else the one that is charged for the most memory. outside
// has the bytes outside the charge by process. Only slots with a live process count; without
// one, LargestSlot returns nil. pids are the processes of the slot, for [Slot.KillCommand].
func (g *Group) LargestSlot(outside map[int]int64, debit int64) (largest *Slot, pids []int, err error) {
	slots, err := g.Slots()
	if err != nil {
		return nil, nil, ignoreGone(err)
	}
	t, file := g.treeOf("memory"), "memory.current"
	if g.v1Tree("memory") != nil {
		file = "memory.usage_in_bytes"
	}
	most := int64(-1)
	for _, slot := range slots {
		found, err := readPIDs(g.v2.box, "work/"+slot+"/cgroup.procs")
		if err != nil || len(found) == 0 {
			continue // it is gone, or empty
		}
		var n, held int64
		for _, pid := range found {
			held += outside[pid]
		}
		if held > debit/2 {
			return &Slot{Name: slot, group: g}, found, nil
		}
		if t != nil {
			n, _ = readNumber(t.box, "work/"+slot+"/"+file)
		}
		if n > most {
			largest, pids, most = &Slot{Name: slot, group: g}, found, n
		}
	}
	return largest, pids, nil
}
