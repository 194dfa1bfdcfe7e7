package cgroups

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// WaitReaped returns when no process of the slot counts against the pids limit any
// more. An empty slot may still have zombies, which do until their parent, at last
// PID 1 of the box, has waited for them (pids_release in kernel/cgroup/pids.c). The
// kernel does not announce it, so it is looked for.
func (s *Slot) WaitReaped(ctx context.Context) error {
	t := s.group.treeOf("pids")
	if t == nil || t.box == nil {
		return nil
	}
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		n, err := readNumber(t.box, s.path()+"/pids.current")
		if err == nil && n == 0 || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// treeOf returns the tree whose hierarchy has a controller, nil if none has.
func (g *Group) treeOf(controller string) *tree {
	for _, t := range g.trees() {
		if t != nil && t.on.has(controller) {
			return t
		}
	}
	return nil
}
