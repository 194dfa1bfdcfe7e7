package launcher

import (
	"context"
	"fmt"
	"os"

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
		b.dropping.Done()
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
	b.dropping.Add(1)
	return s
}

func (b *box) dropSlot(s *cgroups.Slot) {
	defer b.dropping.Done()
	if s.WaitEmpty(b.life) != nil {
		_ = s.Close() // the box ends, and its cgroups with it
		return
	}
	ctx, cancel := context.WithTimeout(b.life, removeTime)
	defer cancel()
	if err := s.Remove(ctx); err != nil && b.life.Err() == nil {
		fmt.Fprintf(os.Stderr, "boxd-init: box %q: removing cgroup of command: %v\n", b.id, err)
	}
}
