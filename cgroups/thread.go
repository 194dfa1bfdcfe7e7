package cgroups

import (
	"errors"
	"fmt"

	"github.com/boxd/boxd/internal/linux"
)

// EnterThread moves the calling thread into the v1 cgroups of the box, so that
// the process it starts next is born there. The goroutine must be locked to its
// thread. LeaveThread must follow; if either fails, the thread must be thrown
// away (never unlocked). On a host without v1 hierarchies it does nothing.
func (g *Group) EnterThread() error {
	for _, t := range g.v1 {
		if err := linux.WriteFileAt(t.box, "tasks", "0"); err != nil {
			return errors.Join(fmt.Errorf("entering cgroup %q: %w", g.ID, err), g.LeaveThread())
		}
	}
	return nil
}

// LeaveThread moves the calling thread back to where this process was when the
// Host was detected.
func (g *Group) LeaveThread() error {
	var errs []error
	for _, t := range g.v1 {
		errs = append(errs, linux.WriteFileAt(t.on.dir, t.on.home+"/tasks", "0"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("leaving cgroup %q: %w", g.ID, err)
	}
	return nil
}
