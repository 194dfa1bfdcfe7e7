package cgroups

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/boxd/boxd/internal/linux"
)

// freezePause is the time between two looks at whether a box is frozen.
const freezePause = time.Millisecond

// Freeze stops all processes of the box, PID 1 included, until Thaw, and waits until
// they stand still: one that the kernel holds up may take its time. Thaw is to be
// called after an error too.
func (g *Group) Freeze(ctx context.Context) error {
	if err := linux.WriteFileAt(g.v2.box, "cgroup.freeze", "1"); err != nil {
		return fmt.Errorf("freezing box %q: %w", g.ID, err)
	}
	for {
		events, err := linux.ReadFileAt(g.v2.box, "cgroup.events", maxFile)
		if err != nil {
			return fmt.Errorf("freezing box %q: %w", g.ID, err)
		}
		if strings.Contains(events, "frozen 1\n") {
			return nil
		}
		select {
		case <-time.After(freezePause):
		case <-ctx.Done():
			return fmt.Errorf("freezing box %q: %w", g.ID, context.Cause(ctx))
		}
	}
}

// Thaw lets the processes of the box go on. A box that is not frozen, or gone, is no
// error.
func (g *Group) Thaw() error {
	if err := linux.WriteFileAt(g.v2.box, "cgroup.freeze", "0"); err != nil && !gone(err) {
		return fmt.Errorf("thawing box %q: %w", g.ID, err)
	}
	return nil
}
