package cgroups

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/boxd/boxd/internal/linux"
)

// Pauses between two checks whether a box is frozen. They grow.
const (
	firstFreezePause = 20 * time.Microsecond
	freezePause      = time.Millisecond
)

// Freeze stops all processes of the box, PID 1 included, until Thaw. It waits until they
// have stopped; a process that is busy in the kernel may take a while. Call Thaw even
// after an error.
//
// Freeze stops the commands first. A command that waits for the supervisor, a thread of
// PID 1, cannot be frozen (in kernel/seccomp.c, only a fatal signal interrupts
// seccomp_do_user_notification), so PID 1 must still be able to answer.
func (g *Group) Freeze(ctx context.Context) error {
	if err := g.freeze(ctx, "work/"); err != nil {
		return err
	}
	return g.freeze(ctx, "")
}

// Pause stops the commands of the box until Resume, and waits until they have stopped. PID 1 goes on: it
// answers, and reaps what is killed. Processes that are put into the box meanwhile stand still at once.
// After an error the caller calls Resume.
func (g *Group) Pause(ctx context.Context) error { return g.freeze(ctx, "work/") }

// freeze writes to dir, which is empty or ends with "/", and waits.
func (g *Group) freeze(ctx context.Context, dir string) error {
	err := linux.WriteFileAt(g.v2.box, dir+"cgroup.freeze", "1")
	if err == nil {
		err = poll(ctx, firstFreezePause, freezePause, func() (bool, error) {
			events, err := linux.ReadFileAt(g.v2.box, dir+"cgroup.events")
			return strings.Contains(events, "frozen 1\n"), err
		})
	}
	if err != nil {
		return fmt.Errorf("freezing box %q: %w", g.ID, err)
	}
	return nil
}

// Thaw lets the processes of the box continue. It is not an error if the box is not frozen,
// or gone.
func (g *Group) Thaw() error { return errors.Join(g.ThawInit(), g.thaw("work/")) }

// ThawInit is Thaw for PID 1 alone, in a box whose commands are paused.
func (g *Group) ThawInit() error { return g.thaw("") }

// Resume ends Pause. It is not an error if the commands are not paused, or the box is gone. It first
// ends the permission to swap of a [Group.Reclaim] whose context has ended; if it cannot, the commands stay paused.
func (g *Group) Resume() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := ignoreGone(g.forbidSwapLocked()); err != nil {
		return fmt.Errorf("forbidding box %q to swap before it goes on: %w", g.ID, err)
	}
	return g.thaw("work/")
}

func (g *Group) thaw(dir string) error {
	if err := linux.WriteFileAt(g.v2.box, dir+"cgroup.freeze", "0"); err != nil && !gone(err) {
		return fmt.Errorf("thawing box %q: %w", g.ID, err)
	}
	return nil
}
