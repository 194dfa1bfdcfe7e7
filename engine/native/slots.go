package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
)

// Every command gets a cgroup of its own, and making and removing one costs the
// launcher about as much as a fork. So it is done ahead of time, away from the
// command's path, and as many as are in demand: a box comes with one slot, keeps
// one ready from its second command on, and up to maxSpare if it runs many
// commands at once.
//
// Making a cgroup takes the kernel's cgroup_mutex, and so does a birth into one.
// So spare slots are made right after a birth, while the command runs.
const (
	maxSpare = 8
	// busyGap between two refills says that a box runs one command after another.
	busyGap = 50 * time.Millisecond
	// idleAfter the last command a box gives back what it no longer needs.
	idleAfter = time.Second
)

// slots hands out fresh slots of one box, and gives used ones back.
type slots struct {
	link *link
	box  string
	wg   sync.WaitGroup // refills under way

	mu       sync.Mutex
	ready    []*slot
	used     []string // to be removed with the next request
	want     int      // spare slots to have
	filling  bool
	refilled time.Time // when the last refill began
	idle     *time.Timer
	closed   bool
}

// newSlots takes ownership of first.
func newSlots(l *link, box string, first *slot) *slots {
	s := &slots{link: l, box: box, ready: []*slot{first}}
	s.idle = time.AfterFunc(idleAfter, s.settle)
	return s
}

// take returns a slot that nobody else uses; the caller releases it.
func (s *slots) take() (*slot, error) {
	s.mu.Lock()
	s.idle.Reset(idleAfter)
	n := len(s.ready)
	if n == 0 {
		s.want = min(max(2*s.want, 1), maxSpare)
		s.mu.Unlock()
		return s.takeNow()
	}
	fresh := s.ready[n-1]
	s.ready = s.ready[:n-1]
	s.mu.Unlock()
	return fresh, nil
}

// takeNow makes a slot for a command that waits for it.
func (s *slots) takeNow() (*slot, error) {
	batch, err := s.fetch(1)
	if err != nil {
		return nil, err
	}
	return batch[0], nil
}

// refill makes spare slots in the background once half of them are gone.
func (s *slots) refill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	missing := s.want - len(s.ready)
	if s.filling || s.closed || missing <= 0 || missing*2 < s.want {
		return
	}
	if now := time.Now(); now.Sub(s.refilled) < busyGap {
		// One larger batch disturbs one command, several small ones all of them.
		s.want = min(2*s.want, maxSpare)
		missing = s.want - len(s.ready)
	}
	s.filling, s.refilled = true, time.Now()
	s.wg.Go(func() {
		// A failure shows when the next command finds no slot and makes its own.
		batch, _ := s.fetch(missing)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ready = append(s.ready, batch...)
		s.filling = false
	})
}

// fetch asks the launcher for n slots and hands it the used ones.
func (s *slots) fetch(n int) ([]*slot, error) {
	s.mu.Lock()
	ask := rpc.Slots{ID: s.box, Count: n, Used: s.used}
	s.used = nil
	s.mu.Unlock()
	var reply []rpc.Slot
	files, err := s.link.call(context.Background(), rpc.TypeSlots, ask, &reply)
	if errors.Is(err, errTruncated) {
		s.giveBack(reply)
	}
	if err != nil {
		s.mu.Lock()
		s.used = append(s.used, ask.Used...) // to be told again; releasing twice is no error
		s.mu.Unlock()
		return nil, fmt.Errorf("making cgroup of command: %w", err)
	}
	var batch []*slot
	for _, m := range reply {
		var fresh *slot
		if fresh, files, err = newSlot(m, files); err != nil {
			break
		}
		batch = append(batch, fresh)
	}
	if err != nil || len(files) != 0 || len(batch) != n {
		linux.CloseAll(files)
		for _, fresh := range batch {
			fresh.close()
		}
		return nil, fmt.Errorf("making cgroup of command: %d of %d slots: %w", len(batch), n, wire.ErrProtocol)
	}
	return batch, nil
}

// giveBack has slots removed that were made and could not be received.
func (s *slots) giveBack(made []rpc.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range made {
		s.used = append(s.used, m.Name)
	}
}

// release gives a slot back; the launcher removes it once it is empty. It may
// wait for the next batch.
func (s *slots) release(old *slot) {
	old.close()
	s.mu.Lock()
	s.used = append(s.used, old.name)
	flush := len(s.used) >= maxSpare
	s.mu.Unlock()
	if flush {
		s.flush()
	}
}

// flush has the launcher remove the used slots now.
func (s *slots) flush() {
	s.mu.Lock()
	ask := rpc.Slots{ID: s.box, Used: s.used}
	s.used = nil
	s.mu.Unlock()
	if len(ask.Used) > 0 {
		_ = s.link.tell(rpc.TypeSlots, ask) // a launcher that is gone needs no telling
	}
}

// settle shrinks the spare slots of a box that has become idle.
func (s *slots) settle() {
	s.mu.Lock()
	s.want = min(s.want, 1)
	for len(s.ready) > 1 && !s.closed {
		n := len(s.ready) - 1
		s.ready[n].close()
		s.used = append(s.used, s.ready[n].name)
		s.ready = s.ready[:n]
	}
	s.mu.Unlock()
	s.flush()
}

// kill signals every process of a slot.
func (s *slots) kill(used *slot, signal int) error {
	_, err := s.link.call(context.Background(), rpc.TypeKill, rpc.Kill{ID: s.box, Slot: used.name, Signal: signal}, nil)
	return err
}

// close drops the spare slots; the box and its cgroups are gone already.
func (s *slots) close() {
	s.mu.Lock()
	s.closed = true
	s.idle.Stop()
	s.mu.Unlock()
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, spare := range s.ready {
		spare.close()
	}
	s.ready = nil
}
