package native

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// slot is the cgroup of one command, held by descriptors only.
type slot struct {
	name string
	// memory is the slot's own limit in bytes, 0 without one.
	memory int64
	birth  []*os.File // cgroup directory and v1 tasks files, which the agent needs to start the command
	procs  *os.File   // cgroup.procs, with which the agent moves a spare into the slot; nil: for commands that are started
	files  []*os.File // stat files, until they are in stats
	stats  *cgroups.SlotStats
	moment int64 // the quiet moments of the box before the slot was last empty, guarded by slots.mu

	reading sync.Mutex // held to open, read and close stats
	last    *cgroups.Usage
}

// newSlot makes a slot from m and the first descriptors in files. It returns the rest.
func newSlot(m rpc.Slot, files []*os.File) (*slot, []*os.File, error) {
	birth, more := 1+m.Tasks, 0
	if m.Begun {
		birth = 0
	}
	if m.Procs {
		more = 1
	}
	if m.Tasks < 0 || birth+more > len(files) {
		return nil, files, fmt.Errorf("slot %q: %d descriptors: %w", m.Name, len(files), wire.ErrProtocol)
	}
	s := &slot{name: m.Name, memory: m.Memory, files: make([]*os.File, len(m.Stats))}
	if !m.Begun {
		s.birth = files[:birth:birth]
	}
	if m.Procs {
		s.procs = files[birth]
	}
	files = files[birth+more:]
	for i, has := range m.Stats {
		if !has {
			continue
		}
		if len(files) == 0 {
			s.close()
			return nil, nil, fmt.Errorf("slot %q: too few descriptors: %w", m.Name, wire.ErrProtocol)
		}
		s.files[i], files = files[0], files[1:]
	}
	return s, files, nil
}

// begin starts counting for a command that is about to start. A renewed slot counts already.
func (s *slot) begin() {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.stats != nil {
		return
	}
	s.stats, s.files = cgroups.OpenStats(s.files), nil
}

// read returns what the command has used. Of a cgroup that was removed with its box, it is
// what the last call returned.
func (s *slot) read() (u cgroups.Usage, err error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.stats == nil {
		return u, nil // it has not begun
	}
	u, err = s.stats.Read()
	switch {
	case err == nil:
		s.last = &u
	case errors.Is(err, unix.ENODEV) && s.last != nil:
		return *s.last, nil
	}
	return u, err
}

// closeBirth closes what is needed only until the command runs.
func (s *slot) closeBirth() {
	linux.CloseAll(s.birth)
	s.birth = nil
	if s.procs != nil {
		s.procs.Close()
		s.procs = nil
	}
}

func (s *slot) close() {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.closeBirth()
	linux.CloseAll(s.files)
	if s.stats != nil {
		s.stats.Close()
	}
}
