package launcher

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/boxd/boxd/cgroups"
)

// release removes a slot once nothing runs in it: at once for most, later for
// one whose background processes were kept, at the latest with the box.
func (l *Launcher) release(b *box, name string) {
	s := b.takeSlot(name)
	if s == nil {
		return
	}
	// Most slots are empty: then the first try does it.
	now, cancel := context.WithCancel(b.life)
	cancel()
	if s.Remove(now) == nil {
		b.unmark(name)
		b.dropped()
		return
	}
	go b.dropSlot(s)
}

// takeSlot gives the ownership of a slot to the caller, who ends it with
// dropSlot; destroy waits for that.
func (b *box) takeSlot(name string) *cgroups.Slot {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.slots[name]
	if s == nil || b.removed {
		return nil
	}
	delete(b.slots, name)
	delete(b.outside.killed, name)
	b.leaving++
	b.dropping.Add(1)
	return s
}

// dropped says that a slot of takeSlot is gone, or the box is ending.
func (b *box) dropped() {
	b.mu.Lock()
	b.leaving--
	b.mu.Unlock()
	b.dropping.Done()
}

func (b *box) dropSlot(s *cgroups.Slot) {
	defer b.dropped()
	if s.WaitEmpty(b.life) != nil {
		_ = s.Close() // the box ends, and its cgroups with it
		return
	}
	ctx, cancel := context.WithTimeout(b.life, removeTime)
	defer cancel()
	err := s.Remove(ctx)
	if err == nil {
		b.unmark(s.Name)
		return
	}
	if b.life.Err() == nil {
		fmt.Fprintf(os.Stderr, "boxd-init: box %q: removing cgroup of command: %v\n", b.id, err)
	}
}

// reapTime bounds the wait for the dead of a killed command. PID 1 needs
// milliseconds for all that a pids limit allows; one that was stopped or taken over
// would never be done.
const reapTime = 2 * time.Second

// killSlot kills a command and returns when its dead do not count any more: the
// next command of the box must not be refused a fork because of them.
func (b *box) killSlot(s *cgroups.Slot) error {
	if err := s.Kill(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(b.life, reapTime)
	defer cancel()
	if err := s.WaitReaped(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}
