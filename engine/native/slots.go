package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
)

// Every command gets a cgroup of its own. Making and removing one costs the launcher about
// as much as a fork, so this is done ahead of time, while no command waits for it. A box
// comes with one slot, keeps one ready from its second command on, and up to maxSpare if it
// runs many commands at once.
//
// Making a cgroup takes the kernel's cgroup_mutex, and so does starting a process in one. So
// spare slots are made right after a command has started, while it runs.
const (
	maxSpare = 8
	// busyGap is the longest time between two refills of a box that counts as busy.
	busyGap = 50 * time.Millisecond
	// idleAfter is how long after its last command a box gives spare slots back.
	idleAfter = time.Second
)

// slots hands out slots of one box, and gives used ones back.
type slots struct {
	link *link
	box  string
	// outlive: the box may outlive this process. Then a launcher that dies must not lose a
	// released slot. And an idle box, of which there are many, keeps no slot.
	outlive bool
	wg      sync.WaitGroup // requests in progress
	// endedAll counts the slots in ended of all boxes of this process.
	endedAll *atomic.Int64

	mu       sync.Mutex // taken before that of a slot
	ready    []*slot
	ended    []*slot            // have served a command, and may serve another
	moments  int64              // quiet moments seen so far
	taken    map[*slot]struct{} // in use: until they are released or their box is gone
	used     []string           // to be removed with the next request
	want     int                // how many spare slots to keep
	filling  bool
	refilled time.Time // when the last refill began
	idle     *time.Timer
	closed   bool
}

// newSlots takes ownership of ready.
func newSlots(c *core, box string, ready []*slot) *slots {
	s := &slots{link: c.link, box: box, outlive: c.service, endedAll: &c.endedSlots, ready: ready, taken: map[*slot]struct{}{}}
	s.idle = time.AfterFunc(idleAfter, s.settle)
	return s
}

// take returns an unused slot; the caller releases it.
func (s *slots) take() (*slot, error) {
	s.mu.Lock()
	s.idle.Reset(idleAfter)
	n := len(s.ready)
	if n == 0 {
		s.want = min(max(2*s.want, 1), maxSpare)
		s.mu.Unlock()
		batch, err := s.fetch(1, false)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.taken[batch[0]] = struct{}{}
		s.mu.Unlock()
		return batch[0], nil
	}
	fresh := s.ready[n-1]
	s.ready = s.ready[:n-1]
	s.taken[fresh] = struct{}{}
	s.mu.Unlock()
	return fresh, nil
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
		// One large batch disturbs one command; several small ones would disturb all.
		s.want = min(2*s.want, maxSpare)
		missing = s.want - len(s.ready)
	}
	s.filling, s.refilled = true, time.Now()
	s.wg.Go(func() {
		// After a failure the next command finds no slot and asks for one itself.
		batch, _ := s.fetch(missing, false)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ready = append(s.ready, batch...)
		s.filling = false
	})
}

// takeForSpares returns n unused slots for spares; the caller releases each.
func (s *slots) takeForSpares(n int) ([]*slot, error) {
	batch, err := s.fetch(n, true)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	for _, fresh := range batch {
		s.taken[fresh] = struct{}{}
	}
	s.mu.Unlock()
	for _, fresh := range batch {
		if fresh.procs == nil {
			err = fmt.Errorf("slot %q has no cgroup.procs: %w", fresh.name, wire.ErrProtocol)
		}
	}
	if err != nil {
		for _, fresh := range batch {
			s.release(fresh)
		}
		return nil, err
	}
	return batch, nil
}

// fetch asks the launcher for n slots, if wanted with cgroup.procs, and hands it the used ones.
func (s *slots) fetch(n int, procs bool) ([]*slot, error) {
	s.mu.Lock()
	ask := s.askLocked(n)
	s.mu.Unlock()
	ask.Procs = procs
	var reply []rpc.Slot
	files, err := s.link.call(context.Background(), rpc.TypeSlots, ask, &reply)
	if err != nil {
		s.mu.Lock()
		s.used = append(s.used, ask.Used...) // sent again; releasing twice is no error
		if errors.Is(err, errTruncated) {
			for _, made := range reply {
				s.used = append(s.used, made.Name)
			}
		}
		s.mu.Unlock()
		return nil, fmt.Errorf("making cgroup of command: %w", err)
	}
	batch, err := takeSlots(reply, files)
	if err == nil && len(batch) != n {
		for _, fresh := range batch {
			fresh.close()
		}
		err = wire.ErrProtocol
	}
	if err != nil {
		return nil, fmt.Errorf("making cgroup of command: %d of %d slots: %w", len(batch), n, err)
	}
	return batch, nil
}

// askLocked asks for n slots and gives back the used ones.
func (s *slots) askLocked(n int) rpc.Slots {
	ask := rpc.Slots{ID: s.box, Count: n, Used: s.used}
	s.used = nil
	return ask
}

// takeSlots makes slots from a reply. It takes ownership of files.
func takeSlots(reply []rpc.Slot, files []*os.File) (batch []*slot, err error) {
	for _, m := range reply {
		var fresh *slot
		if fresh, files, err = newSlot(m, files); err != nil {
			break
		}
		batch = append(batch, fresh)
	}
	if err != nil || len(files) != 0 {
		linux.CloseAll(files)
		for _, fresh := range batch {
			fresh.close()
		}
		return nil, errors.Join(err, wire.ErrProtocol)
	}
	return batch, nil
}

// leave tells the launcher that a slot has background processes that an adoption must spare.
func (s *slots) leave(old *slot) error {
	if !s.outlive {
		return nil
	}
	ask := rpc.Slots{ID: s.box, Background: []string{old.name}}
	if _, err := s.link.call(context.Background(), rpc.TypeSlots, ask, nil); err != nil {
		return fmt.Errorf("leaving processes in the background: %w", err)
	}
	return nil
}

// release gives a slot back; the launcher removes it once it is empty. It may
// wait for the next batch.
func (s *slots) release(old *slot) {
	old.close()
	s.mu.Lock()
	delete(s.taken, old)
	s.used = append(s.used, old.name)
	flush := len(s.used) >= maxSpare
	s.mu.Unlock()
	if flush {
		s.flush()
	}
}

// releaseNow is release that returns when the launcher has removed the mark of the slot. If ctx ends
// first, the slot is released later.
func (s *slots) releaseNow(ctx context.Context, old *slot) error {
	old.close()
	s.mu.Lock()
	delete(s.taken, old)
	s.mu.Unlock()
	ask := rpc.Slots{ID: s.box, Used: []string{old.name}}
	if _, err := s.link.call(ctx, rpc.TypeSlots, ask, nil); err != nil {
		s.mu.Lock()
		s.used = append(s.used, old.name) // releasing twice is no error
		s.mu.Unlock()
		s.flush()
		return fmt.Errorf("removing cgroup of command: %w", err)
	}
	return nil
}

// flush has the launcher remove the used slots now.
func (s *slots) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	ask := s.askLocked(0)
	switch {
	case len(ask.Used) == 0:
	case !s.outlive:
		_ = s.link.tell(rpc.TypeSlots, ask) // unnecessary if the launcher is gone
	case !s.closed:
		s.wg.Go(func() {
			// If this fails for good, the next adoption removes the slots.
			_, _ = s.link.call(context.Background(), rpc.TypeSlots, ask, nil)
		})
	}
}

// settle gives back spare slots of a box that has become idle.
func (s *slots) settle() {
	s.dropEnded()
	s.mu.Lock()
	keep := 1
	if s.outlive {
		keep = 0
	}
	s.want = min(s.want, keep)
	for len(s.ready) > keep && !s.closed {
		n := len(s.ready) - 1
		s.ready[n].close()
		s.used = append(s.used, s.ready[n].name)
		s.ready = s.ready[:n]
	}
	s.mu.Unlock()
	s.flush()
}

// kill signals every process of a slot.
func (s *slots) kill(ctx context.Context, used *slot, signal int) error {
	_, err := s.link.call(ctx, rpc.TypeKill, rpc.Kill{ID: s.box, Slot: used.name, Signal: signal}, nil)
	return err
}

// keep assigns a slot to the managed process key, so that an adoption spares it until it is
// released. memory is a memory limit of the slot, 0 for none. Boxes that end with this
// process are not adopted, so for them only a limit needs a request.
func (s *slots) keep(taken *slot, key string, memory int64) error {
	if !s.outlive && memory == 0 {
		return nil
	}
	_, err := s.link.call(context.Background(), rpc.TypeKeep, rpc.Keep{ID: s.box, Slot: taken.name, Key: key, Memory: memory}, nil)
	if err == nil {
		taken.memory = memory
	}
	return err
}

// open opens an existing slot, with its figures so far. The caller releases it.
func (s *slots) open(name string) (*slot, error) {
	var reply []rpc.Slot
	files, err := s.link.call(context.Background(), rpc.TypeOpen, rpc.Open{ID: s.box, Slots: []string{name}}, &reply)
	if err != nil {
		return nil, fmt.Errorf("opening cgroup of command: %w", err)
	}
	batch, err := takeSlots(reply, files)
	if err == nil && len(batch) != 1 {
		err = fmt.Errorf("there is no slot %q: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("opening cgroup of command: %w", err)
	}
	s.mu.Lock()
	s.taken[batch[0]] = struct{}{}
	s.mu.Unlock()
	return batch[0], nil
}

// readAll reads what all commands have used, because their cgroups are about to be removed.
func (s *slots) readAll() {
	s.mu.Lock()
	taken := slices.Collect(maps.Keys(s.taken))
	s.mu.Unlock()
	for _, t := range taken {
		_, _ = t.read() // an error comes up again at the end of the command
	}
}

// close closes the spare slots. The launcher removes their cgroups with the box.
func (s *slots) close() {
	s.mu.Lock()
	s.closed = true
	s.idle.Stop()
	s.mu.Unlock()
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, spare := range slices.Concat(s.ready, s.dropEndedLocked()) {
		spare.close()
	}
	s.ready = nil
}
