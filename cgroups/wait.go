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

// WaitEmpty returns when no process is in the box, as seen on cgroup2. Zombies do
// not count. A box that is gone is empty.
func (g *Group) WaitEmpty(ctx context.Context) error {
	if g.v2.box == nil {
		return nil
	}
	f, err := openEvents(g.v2.box, "cgroup.events")
	if err != nil {
		return ignoreGone(err)
	}
	defer f.Close()
	return waitEmpty(ctx, f)
}

// WaitEmpty returns when no process is in the slot, as [Group.WaitEmpty] does. It
// works with a closed slot too. A slot that is gone is empty.
func (s *Slot) WaitEmpty(ctx context.Context) error {
	if s.group.v2.box == nil {
		return nil
	}
	f, err := openEvents(s.group.v2.box, s.path()+"/cgroup.events")
	if err != nil {
		return ignoreGone(err)
	}
	defer f.Close()
	return waitEmpty(ctx, f)
}

// openEvents opens a cgroup.events file so that the runtime's poller waits for
// its changes: no thread is blocked meanwhile.
func openEvents(dir *os.File, name string) (*os.File, error) {
	return linux.OpenAt(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
}

// How often waitEmpty looks without being told. The kernel announces a change at
// most every 10 ms per file (CGROUP_FILE_NOTIFY_MIN_INTV) and the first
// announcement is "populated", so that the end of a short command would be heard
// of late: for that long it is looked for. Later a look now and then is a safety
// net only: an announcement that is still held back gets lost if the cgroup is
// removed.
const (
	firstLook = 100 * time.Microsecond
	lastLook  = 16 * time.Millisecond
	idleLook  = time.Second
)

// populatedLine is the line of cgroup.events that says that a process is alive in
// or below the cgroup.
const populatedLine = "populated 1"

// waitEmpty waits until events says that no process is in the cgroup. It uses
// the read deadline of events, which must have no other waiter.
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
		// After the deadline was set, or the one that AfterFunc set would be lost.
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
