package cgroups

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/boxd/boxd/internal/linux"
)

// LimitMemory gives the slot its own limit, in bytes, for memory and swap, in addition to
// that of the box. It must be called before anything runs in the slot. The limit is in force
// until the slot is removed, even if this process ends before. degraded accepts a host that
// cannot keep the slot from swapping; a host that cannot limit memory at all is an
// [UnenforceableError].
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
	path := s.path() + "/"
	t, err := s.group.memoryTree()
	if err != nil {
		return err
	}
	knobs := t.memoryKnobs(path, bytes)
	// Lower memory before memsw: memory must never be the larger one.
	for _, k := range slices.Backward(knobs) {
		if err := k.set(k.value); err != nil {
			return err
		}
	}
	missing := "memory.swap.max"
	switch {
	case t.on.v1 && len(knobs) > 1: // memsw is among them
		return nil
	case t.on.v1:
		missing = "memory.memsw.limit_in_bytes"
		if err := linux.WriteFileAt(t.box, path+"memory.swappiness", "0"); err != nil {
			return err
		}
	case exists(t.box, path+missing):
		return (&knob{dir: t.box, file: path + missing, style: v2Number}).set(0)
	}
	if !hostSwaps() {
		return nil
	}
	return unenforceable("swap", "the kernel does not count swap per cgroup (no "+missing+")")
}

// MemoryLimit returns the limit that [Slot.LimitMemory] has set, or Unlimited.
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

// nearLimit is how far below the limit the peak of a cgroup that ran out of memory may be:
// the kernel charges several pages at once, and counts only those that it got.
const nearLimit = 1 << 20

// HitOwn reports whether something in a slot with its own memory limit was killed because of
// that limit, and not because of that of the box; u is the slot's usage. cgroup2 counts such
// events. v1 does not, so there HitOwn judges by the peak.
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
