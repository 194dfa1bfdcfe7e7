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
//
// The commands come first. One that waits for the supervisor, a thread of PID 1,
// cannot be frozen (seccomp_do_user_notification in kernel/seccomp.c waits for a
// fatal signal only), so PID 1 must still be able to answer.
func (g *Group) Freeze(ctx context.Context) error {
	for _, dir := range []string{"work/", ""} {
		if err := g.freeze(ctx, dir); err != nil {
			return fmt.Errorf("freezing box %q: %w", g.ID, err)
		}
	}
	return nil
}

func (g *Group) freeze(ctx context.Context, dir string) error {
	if err := linux.WriteFileAt(g.v2.box, dir+"cgroup.freeze", "1"); err != nil {
		return err
	}
	for {
		events, err := linux.ReadFileAt(g.v2.box, dir+"cgroup.events", maxFile)
		if err != nil || strings.Contains(events, "frozen 1\n") {
			return err
		}
		select {
		case <-time.After(freezePause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Thaw lets the processes of the box go on. A box that is not frozen, or gone, is no
// error.
func (g *Group) Thaw() error {
	for _, dir := range []string{"", "work/"} {
		if err := linux.WriteFileAt(g.v2.box, dir+"cgroup.freeze", "0"); err != nil && !gone(err) {
			return fmt.Errorf("thawing box %q: %w", g.ID, err)
		}
	}
	return nil
}
