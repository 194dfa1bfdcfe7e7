package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// WaitEmpty waits until no process is in the box, as seen on cgroup2. Zombies do not count.
// A box that is gone is empty.
func (g *Group) WaitEmpty(ctx context.Context) error { return g.waitEmpty(ctx, "cgroup.events") }

// WaitEmpty waits until no process is in the slot, like [Group.WaitEmpty]. It also works
// for a closed slot. A slot that is gone is empty.
func (s *Slot) WaitEmpty(ctx context.Context) error {
	return s.group.waitEmpty(ctx, s.path()+"/cgroup.events")
}

func (g *Group) waitEmpty(ctx context.Context, events string) error {
	if g.v2.box == nil {
		return nil
	}
	f, err := openEvents(g.v2.box, events)
	if err != nil {
		return ignoreGone(err)
	}
	defer f.Close()
	return waitEmpty(ctx, f)
}

// WaitReaped waits until no process of the slot counts against the pids limit any more. An
// empty slot may still have zombies, which count until their parent, in the end PID 1 of the
// box, has reaped them (pids_release in kernel/cgroup/pids.c). The kernel does not announce
// that, so WaitReaped polls.
func (s *Slot) WaitReaped(ctx context.Context) error {
	t := s.group.treeOf("pids")
	if t == nil || t.box == nil {
		return nil
	}
	return poll(ctx, 50*time.Microsecond, 10*time.Millisecond, func() (bool, error) {
		n, err := readNumber(t.box, s.path()+"/pids.current")
		return err == nil && n == 0 || gone(err), ignoreGone(err)
	})
}

// poll calls fn until it is done or fails, or ctx ends. The pauses between calls begin with
// pause and double up to most.
func poll(ctx context.Context, pause, most time.Duration, fn func() (done bool, err error)) error {
	for ; ; pause = min(2*pause, most) {
		if done, err := fn(); done || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// openEvents opens a cgroup.events file for the runtime's poller, so that waiting for a
// change blocks no thread.
func openEvents(dir *os.File, name string) (*os.File, error) {
	return linux.OpenAt(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
}

// How often waitEmpty checks without a notification. The kernel notifies at most every
// 10 ms per file (CGROUP_FILE_NOTIFY_MIN_INTV), and the start of a command is already such
// a notification, so the one for the end of a short command would be late: at first,
// waitEmpty checks often. Later, an occasional check is only a safety net: a pending
// notification gets lost if the cgroup is removed.
const (
	firstLook = 100 * time.Microsecond
	lastLook  = 16 * time.Millisecond
	idleLook  = time.Second
)

// populatedLine is the line in cgroup.events that means that a process is alive in or below
// the cgroup.
const populatedLine = "populated 1"

// waitEmpty waits until events, a cgroup.events file, says that no process is in the cgroup.
// It uses the read deadline of events, which must have no other waiter.
func waitEmpty(ctx context.Context, events *os.File) error {
	raw, err := events.SyscallConn()
	if err != nil {
		return err
	}
	past := time.Unix(1, 0)
	stop := context.AfterFunc(ctx, func() { events.SetReadDeadline(past) })
	defer stop()
	for look := firstLook; ; look *= 2 {
		if look > lastLook {
			look = idleLook
		}
		if err := events.SetReadDeadline(time.Now().Add(look)); err != nil {
			return fmt.Errorf("waiting for an empty cgroup: %w", err)
		}
		// Check ctx only now: setting the deadline may have replaced that of AfterFunc.
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var populated bool
		var rerr error
		err := raw.Read(func(uintptr) bool {
			populated, rerr = isPopulated(events)
			return rerr != nil || !populated
		})
		switch {
		case rerr != nil:
			return rerr
		case err == nil:
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
	}
}

// isPopulated reads cgroup.events. A cgroup that is gone is empty.
func isPopulated(events *os.File) (bool, error) {
	var buf [256]byte
	n, err := events.ReadAt(buf[:], 0)
	if n == 0 && err != nil {
		return false, ignoreGone(err)
	}
	return strings.Contains(string(buf[:n]), populatedLine), nil
}
