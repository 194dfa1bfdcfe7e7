package cgroups

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/boxd/boxd/internal/linux"
)

// freezePause is the time between two checks whether a box is frozen.
const freezePause = time.Millisecond

// Freeze stops all processes of the box, PID 1 included, until Thaw. It waits until they
// have stopped; a process that is busy in the kernel may take a while. Call Thaw even
// after an error.
//
// Freeze stops the commands first. A command that waits for the supervisor, a thread of
// PID 1, cannot be frozen (in kernel/seccomp.c, only a fatal signal interrupts
// seccomp_do_user_notification), so PID 1 must still be able to answer.
func (g *Group) Freeze(ctx context.Context) error {
	for _, dir := range []string{"work/", ""} {
		err := linux.WriteFileAt(g.v2.box, dir+"cgroup.freeze", "1")
		if err == nil {
			err = poll(ctx, freezePause, freezePause, func() (bool, error) {
				events, err := linux.ReadFileAt(g.v2.box, dir+"cgroup.events")
				return strings.Contains(events, "frozen 1\n"), err
			})
		}
		if err != nil {
			return fmt.Errorf("freezing box %q: %w", g.ID, err)
		}
	}
	return nil
}

// Thaw lets the processes of the box continue. It is not an error if the box is not frozen,
// or gone.
func (g *Group) Thaw() error {
	for _, dir := range []string{"", "work/"} {
		if err := linux.WriteFileAt(g.v2.box, dir+"cgroup.freeze", "0"); err != nil && !gone(err) {
			return fmt.Errorf("thawing box %q: %w", g.ID, err)
		}
	}
	return nil
}
