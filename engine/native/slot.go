package native

import (
	"fmt"
	"os"
	"sync"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine/native/rpc"
)

// spareSlots is how many slots a box keeps ready, so that making one is not on
// the way of a command.
const spareSlots = 2

// slot is the cgroup of one command, held by descriptors only.
type slot struct {
	name  string
	birth []*os.File // cgroup directory and v1 tasks files, for the agent
	files []*os.File // stat files, until they are in stats
	stats *cgroups.SlotStats
}

func (s *slot) close() {
	for _, f := range append(s.birth, s.files...) {
		f.Close() // a nil file is fine
	}
	if s.stats != nil {
		s.stats.Close()
	}
}

// begin starts the counting for a command that is about to be born.
func (s *slot) begin() {
	s.stats, s.files = cgroups.OpenStats(s.files), nil
}

// slots hands out fresh slots of one box.
type slots struct {
	link  *link
	box   string
	ready chan *slot
	wg    sync.WaitGroup // refills under way
}

func newSlots(l *link, box string) *slots {
	s := &slots{link: l, box: box, ready: make(chan *slot, spareSlots)}
	s.refill()
	return s
}

// refill makes one more spare slot in the background. A failure shows when the
// next command makes its own.
func (s *slots) refill() {
	s.wg.Go(func() {
		fresh, err := s.fetch()
		if err != nil {
			return
		}
		select {
		case s.ready <- fresh:
		default:
			s.release(fresh)
		}
	})
}

// take returns a slot that nobody else uses; the caller releases it.
func (s *slots) take() (*slot, error) {
	select {
	case fresh := <-s.ready:
		return fresh, nil
	default:
		return s.fetch()
	}
}

func (s *slots) fetch() (*slot, error) {
	var m rpc.Slot
	files, err := s.link.call(rpc.TypeSlot, rpc.Box{ID: s.box}, &m)
	if err != nil {
		return nil, fmt.Errorf("making cgroup of command: %w", err)
	}
	present := 0
	for _, has := range m.Stats {
		if has {
			present++
		}
	}
	birth := 1 + m.Tasks
	if m.Tasks < 0 || len(files) != birth+present {
		frame := wire.Frame{Files: files}
		frame.Close()
		return nil, fmt.Errorf("making cgroup of command: %d descriptors: %w", len(files), wire.ErrProtocol)
	}
	stats := make([]*os.File, len(m.Stats))
	rest := files[birth:]
	for i, has := range m.Stats {
		if has {
			stats[i], rest = rest[0], rest[1:]
		}
	}
	return &slot{name: m.Name, birth: files[:birth], files: stats}, nil
}

// release gives a slot back; the launcher removes it once it is empty.
func (s *slots) release(used *slot) {
	used.close()
	_ = s.link.tell(rpc.TypeRelease, rpc.Release{ID: s.box, Slot: used.name})
}

// kill signals every process of a slot.
func (s *slots) kill(used *slot, signal int) error {
	_, err := s.link.call(rpc.TypeKill, rpc.Kill{ID: s.box, Slot: used.name, Signal: signal}, nil)
	return err
}

// close drops the spare slots; the box and its cgroups are gone already.
func (s *slots) close() {
	s.wg.Wait()
	for {
		select {
		case spare := <-s.ready:
			spare.close()
		default:
			return
		}
	}
}
