package cgroups

import (
	"errors"
	"fmt"
	"os"

	"github.com/boxd/boxd/internal/linux"
)

// LimitMemory gives the slot a limit of its own, in bytes, beside that of the box, for
// memory and swap. It is in force for as long as the slot is there, whoever made it.
// To be called before anything runs in it. degraded accepts a host that cannot keep the
// slot out of swap; one that cannot limit memory at all is an [UnenforceableError].
func (s *Slot) LimitMemory(bytes int64, degraded bool) error {
	bytes -= bytes % int64(os.Getpagesize())
	err := s.limitMemory(bytes)
	if u, ok := errors.AsType[*UnenforceableError](err); ok && u.Limit == "swap" && degraded {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("limiting the memory of slot %s of box %q: %w", s.Name, s.group.ID, err)
	}
	if w := s.group.watcher.Load(); w != nil {
		w.addSlotMemory(s.group, s.Name)
	}
	return nil
}

func (s *Slot) limitMemory(bytes int64) error {
	g, path := s.group, s.path()+"/"
	if g.v1Tree("memory") == nil {
		t, err := g.carrier("memory", "memory", "memory.max")
		if err != nil {
			return err
		}
		if err := (&knob{dir: t.box, file: path + "memory.max", style: v2Number}).set(bytes); err != nil {
			return err
		}
		if exists(t.box, path+"memory.swap.max") {
			return (&knob{dir: t.box, file: path + "memory.swap.max", style: v2Number}).set(0)
		}
		return s.swapsAnyway("no memory.swap.max")
	}
	t, err := g.carrier("memory", "memory", "memory.limit_in_bytes")
	if err != nil {
		return err
	}
	// Memory before both together: the one is never above the other.
	if err := (&knob{dir: t.box, file: path + "memory.limit_in_bytes"}).set(bytes); err != nil {
		return err
	}
	if exists(t.box, path+"memory.memsw.limit_in_bytes") {
		return (&knob{dir: t.box, file: path + "memory.memsw.limit_in_bytes"}).set(bytes)
	}
	if err := linux.WriteFileAt(t.box, path+"memory.swappiness", "0"); err != nil {
		return err
	}
	return s.swapsAnyway("no memory.memsw.limit_in_bytes")
}

// swapsAnyway is the error of a host that has swap and does not count it.
func (s *Slot) swapsAnyway(missing string) error {
	if !hostSwaps() {
		return nil
	}
	return unenforceable("swap", "the kernel does not count swap per cgroup ("+missing+")")
}

// MemoryLimit is what [Slot.LimitMemory] has set, Unlimited without it.
func (s *Slot) MemoryLimit() (int64, error) {
	n, err := s.group.slotMemoryLimit(s.Name)
	if err != nil {
		return Unlimited, fmt.Errorf("reading the memory limit of slot %s of box %q: %w", s.Name, s.group.ID, err)
	}
	return n, nil
}

func (g *Group) slotMemoryLimit(slot string) (int64, error) {
	t, file, style := g.v2, "memory.max", v2Number
	if v1 := g.v1Tree("memory"); v1 != nil {
		t, file, style = v1, "memory.limit_in_bytes", v1Number
	}
	n, err := (&knob{dir: t.box, file: "work/" + slot + "/" + file, style: style}).read()
	if gone(err) {
		return Unlimited, nil
	}
	return n, err
}

// nearLimit is how far below its limit the peak of a cgroup that ran out of memory may
// be: the kernel charges some pages at once, and counts what it got only.
const nearLimit = 1 << 20

// HitOwn says whether u, of a slot with a memory limit of its own, shows that it was
// this limit which something was killed for, and not that of the box. cgroup2 counts
// it; v1 does not, where the peak has to tell.
func (u Usage) HitOwn(limit int64) bool {
	switch {
	case limit <= 0:
		return false
	case u.OOMs != nil:
		return *u.OOMs > 0
	case u.MemoryPeak != nil:
		return *u.MemoryPeak > limit-nearLimit
	}
	return true
}
