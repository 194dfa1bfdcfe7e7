package cgroups

import (
	"errors"
	"fmt"
	"slices"
)

// Set raises or lowers the limits of a live box. Zero fields leave a limit as it is. After
// an error all limits are as before.
//
// Lowering a limit never kills. A memory limit below the current usage makes the kernel
// reclaim page cache; if that is not enough, the error is an [InUseError]. A pids limit
// below the current number only refuses further forks. A CPU limit takes effect within one
// period of 100 ms.
func (g *Group) Set(l Limits) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	l = g.limits.merge(l).normal()
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
		// Undo the failed one too: memory may be in force and its swap limit not.
		for _, undo := range controllers[:i+1] {
			err = errors.Join(err, g.undoOne(undo, old))
		}
		return fmt.Errorf("limiting box %q: %w", g.ID, err)
	}
	g.limits = l
	return nil
}

// Limits returns the limits in force, Unlimited for each limit that is not set.
func (g *Group) Limits() Limits {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits.normal()
}

// setOne sets one limit. The memory limit includes those of swap and sockets.
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

// accept notes a limit that cannot be enforced if l allows that, and returns any other
// error.
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

// undoOne restores an old limit. If that could not be enforced before, it still cannot.
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

// forgetDegraded drops the notes about a limit that is about to be set again. It copies the
// slice, because callers may hold the old one.
func (g *Group) forgetDegraded(controller string) {
	g.Degraded = slices.DeleteFunc(slices.Clone(g.Degraded), func(d *UnenforceableError) bool { return d.controller() == controller })
}

// controller returns the controller of the limit that e reports.
func (e *UnenforceableError) controller() string {
	switch e.Limit {
	case "swap", "kernel memory":
		return "memory"
	case "cpus":
		return "cpu"
	}
	return e.Limit
}

// same reports whether l and m have the same value for one limit.
func (l Limits) same(name string, m Limits) bool {
	switch name {
	case "memory":
		return l.Memory == m.Memory
	case "pids":
		return l.PIDs == m.PIDs
	}
	return l.CPUs == m.CPUs
}
