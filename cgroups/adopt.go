package cgroups

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Adopt takes over the cgroups of a box that another process created with owner and limits
// l. If any part of them is missing, Adopt fails and leaves the rest as it is. The caller
// owns the Group.
func (h *Host) Adopt(id string, owner Owner, l Limits) (_ *Group, err error) {
	g, err := h.OpenGroup(id)
	if err != nil {
		return nil, err
	}
	g.owner, g.limits, g.enableErr = owner, l.normal(), map[string]error{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("adopting cgroup %q: %w", id, err), g.Close())
		}
	}()
	if g.v2.box == nil || len(g.v1) != len(h.v1) {
		return nil, fmt.Errorf("parts of it are gone: %w", os.ErrNotExist)
	}
	for _, t := range g.trees() {
		if !exists(t.box, "work") {
			return nil, fmt.Errorf("it has no %q: %w", "work", os.ErrNotExist)
		}
	}
	if err := g.forbidSwapLocked(); err != nil { // the death of that process may have interrupted Reclaim
		return nil, err
	}
	g.sealed, err = h.seal(g.v2.box, id)
	return g, err
}

// HasInit reports whether the main thread of process pid is in the cgroups for PID 1 of the box, on
// every hierarchy.
func (g *Group) HasInit(pid int) (bool, error) {
	pids, err := readPIDs(g.v2.box, "init/cgroup.procs")
	for _, t := range g.v1 {
		if err != nil || !slices.Contains(pids, pid) {
			return false, err
		}
		pids, err = readPIDs(t.box, "tasks")
	}
	return slices.Contains(pids, pid), err
}

// NumberFrom makes the next slot's number n+1 or higher. A process that adopts boxes must
// not reuse numbers that were given out before, because a client may be about to return
// such a slot by its name.
func (g *Group) NumberFrom(n int64) { g.lastSlot.Store(n) }

// Slots lists the slots of the box, including those that other processes created, in no
// particular order.
func (g *Group) Slots() ([]string, error) {
	names, err := subdirectories(g.v2.box, "work")
	if err != nil {
		return nil, fmt.Errorf("listing slots of box %q: %w", g.ID, err)
	}
	return names, nil
}

// Slot returns the named slot, which another process created, without descriptors. The slot
// may no longer exist.
func (g *Group) Slot(name string) (*Slot, error) {
	if n, err := strconv.ParseInt(name, 10, 64); err != nil || n <= 0 {
		return nil, fmt.Errorf("slot %q of box %q: not the name of a slot", name, g.ID)
	}
	return &Slot{Name: name, group: g}, nil
}

// Open opens the descriptors of a slot from [Group.Slot].
func (s *Slot) Open() error {
	if err := s.open(); err != nil {
		return errors.Join(fmt.Errorf("opening slot %s of box %q: %w", s.Name, s.group.ID, err), s.Close())
	}
	return nil
}

// BoxUsage is the current usage of all commands of a box. A figure that this host does not
// provide is nil.
type BoxUsage struct {
	Memory        *int64 // bytes, page cache included
	PIDs          *int64 // processes and threads
	CPUUsec       *int64 // µs since the box was created
	ThrottledUsec *int64 // µs that the box waited because of the CPU limit
}

// Usage reads the current usage of all commands of the box together.
func (g *Group) Usage() (BoxUsage, error) {
	var u BoxUsage
	var errs [4]error
	u.Memory, errs[0] = g.figure("memory", "memory.current", "memory.usage_in_bytes", "")
	u.PIDs, errs[1] = g.figure("pids", "pids.current", "pids.current", "")
	u.CPUUsec, errs[2] = g.figure("", "cpu.stat", "", "usage_usec")
	u.ThrottledUsec, errs[3] = g.figure("cpu", "cpu.stat", "cpu.stat", "throttled_usec")
	if u.ThrottledUsec == nil && errs[3] == nil {
		u.ThrottledUsec, errs[3] = g.figure("cpu", "", "cpu.stat", "throttled_time")
		if u.ThrottledUsec != nil {
			*u.ThrottledUsec /= 1000 // ns on v1
		}
	}
	if t := g.v1Tree("pids"); t != nil && u.PIDs != nil {
		*u.PIDs = max(*u.PIDs-SpawnerThreads, 0) // they are in work, see HomeTasks
	}
	if err := errors.Join(errs[:]...); err != nil {
		return u, fmt.Errorf("reading the usage of box %q: %w", g.ID, err)
	}
	return u, nil
}

// figure reads one figure of work. It is nil if this host does not provide it.
func (g *Group) figure(controller, v2, v1, key string) (*int64, error) {
	t, name := g.v2, v2
	if on := g.v1Tree(controller); on != nil {
		t, name = on, v1
	}
	if name == "" || controller != "" && !t.on.has(controller) {
		return nil, nil
	}
	text, err := linux.ReadFileAt(t.box, "work/"+name)
	if errors.Is(err, unix.ENOENT) && exists(t.box, "work") {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return findNumber(text, key)
}
