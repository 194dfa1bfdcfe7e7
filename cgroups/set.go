package cgroups

import (
	"errors"
	"fmt"
)

// Set raises or lowers the limits of a live box. Zero fields stay as they are.
// On error all limits are as they were.
//
// Lowering never kills. A memory limit below what the box uses makes the kernel
// reclaim page cache; if that is not enough, it is an [InUseError]. A pids limit
// below the present number only refuses further forks. A CPU limit takes effect
// within one period of 100 ms.
func (g *Group) Set(l Limits) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.setAllLocked(g.limits.merge(l).normal())
}

// Limits returns the limits in force, Unlimited where there is none.
func (g *Group) Limits() Limits {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits.normal()
}

// setAllLocked puts all limits into force, or leaves them as they were. Where a
// limit is degraded, that is noted. The caller holds g.mu.
func (g *Group) setAllLocked(l Limits) error {
	old, degraded := g.limits.normal(), g.Degraded
	for i, name := range controllers {
		if old.same(name, l) {
			continue
		}
		err := g.setOne(name, l)
		if err == nil {
			continue
		}
		g.Degraded = degraded
		// The failed one too: memory may be in force and its swap limit not.
		for _, undo := range controllers[:i+1] {
			err = errors.Join(err, g.undoOne(undo, old))
		}
		return fmt.Errorf("limiting box %q: %w", g.ID, err)
	}
	g.limits = l
	return nil
}

// setOne puts one limit into force. Memory comes with swap and with sockets.
func (g *Group) setOne(name string, l Limits) error {
	g.forgetDegraded(name)
	if err := g.limit(name, l); err != nil || name != "memory" {
		return g.accept(name, l, err)
	}
	if l.Memory > 0 {
		if err := g.accept(name, l, g.noSwap()); err != nil {
			return err
		}
	}
	return g.accept(name, l, g.boundSockets(l.Memory))
}

// accept notes what cannot be enforced where that was allowed, and returns other
// errors.
func (g *Group) accept(name string, l Limits, err error) error {
	u, ok := errors.AsType[*UnenforceableError](err)
	switch {
	case !ok:
		return err
	case l.same(name, Limits{}.normal()):
		return nil // nothing to enforce
	case !l.AllowDegraded:
		return err
	}
	g.Degraded = append(g.Degraded, u)
	return nil
}

// undoOne puts an old limit back. What could not be enforced then cannot be now.
func (g *Group) undoOne(name string, old Limits) error {
	err := g.limit(name, old)
	if err == nil && name == "memory" {
		err = g.boundSockets(old.Memory)
	}
	if _, ok := errors.AsType[*UnenforceableError](err); ok {
		return nil
	}
	return err
}

// forgetDegraded drops the notes on a limit that is about to be set anew. The
// slice is copied, because callers may hold the old one.
func (g *Group) forgetDegraded(controller string) {
	var kept []*UnenforceableError
	for _, d := range g.Degraded {
		if d.controller() != controller {
			kept = append(kept, d)
		}
	}
	g.Degraded = kept
}

// controller is the controller that the limit of e belongs to.
func (e *UnenforceableError) controller() string {
	switch e.Limit {
	case "swap", "kernel memory":
		return "memory"
	case "cpus":
		return "cpu"
	}
	return e.Limit
}

// same says that l and m agree in one limit.
func (l Limits) same(name string, m Limits) bool {
	switch name {
	case "memory":
		return l.Memory == m.Memory
	case "pids":
		return l.PIDs == m.PIDs
	}
	return l.CPUs == m.CPUs
}
