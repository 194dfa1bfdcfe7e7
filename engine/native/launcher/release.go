package launcher

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/boxd/boxd/cgroups"
)

// release removes a slot once nothing runs in it: for most slots at once, for one with
// background processes when they end, and at the latest with the box.
func (l *Launcher) release(b *box, name string) {
	s := b.takeSlot(name)
	if s == nil {
		return
	}
	// Most slots are empty, so that one attempt removes them.
	now, cancel := context.WithCancel(b.life)
	cancel()
	if s.Remove(now) == nil {
		b.unmark(name)
		b.dropped()
		return
	}
	go b.dropSlot(s)
}

// takeSlot gives a slot to the caller, who calls dropped when it is removed. destroy waits
// for that.
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

// dropped notes that a slot from takeSlot is gone, or that the box is ending.
func (b *box) dropped() {
	b.mu.Lock()
	b.leaving--
	b.mu.Unlock()
	b.dropping.Done()
}

// dropSlot removes a slot from takeSlot once it is empty.
func (b *box) dropSlot(s *cgroups.Slot) {
	defer b.dropped()
	if s.WaitEmpty(b.life) != nil {
		_ = s.Close() // the box is ending, and removes its cgroups
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

// reapTime bounds the wait until PID 1 has reaped the processes of a killed command. It
// needs milliseconds for as many as a pids limit allows; a stopped or subverted PID 1 might
// never reap them.
const reapTime = 2 * time.Second

// killSlot kills a command and waits until its processes are reaped. Until then they count
// against the pids limit, and the next command could not fork.
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
