package native

import "slices"

// Making and removing a slot takes about a fourth of the processor time of a short command. So a slot serves
// several commands, one after the other, where the kernel shows that it is as good as a new one: see
// cgroups/renew.go. A managed process gets a new slot, because a later client reads all its figures from the
// kernel. If the launcher was asked to signal the processes of a slot, it is not renewed: the name of a slot never
// means another command while a signal may be under way.

// How many slots of ended commands are kept, of one box and of all boxes of this process: each has about
// eleven descriptors.
const (
	maxEnded    = 16
	maxEndedAll = 64
)

// takeAny returns a slot for a command that is not managed, new or renewed. The caller gives it back with
// release or reuse.
func (s *slots) takeAny() (*slot, error) {
	for {
		old := s.takeEnded()
		if old == nil {
			return s.take()
		}
		if old.renew() {
			return old, nil
		}
		s.release(old)
	}
}

// takeEnded returns a slot whose command has ended before a quiet moment, or nil.
func (s *slots) takeEnded() *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, old := range s.ended {
		if old.moment < s.moments {
			s.ended = slices.Delete(s.ended, i, i+1)
			s.endedAll.Add(-1)
			s.taken[old] = struct{}{}
			s.idle.Reset(idleAfter)
			return old
		}
	}
	return nil
}

// emptied notes that no process is left in a slot, and whether none is left in the whole box.
func (s *slots) emptied(old *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old.moment = s.moments
	// The lock is held from before the note until after the look: a slot that becomes empty after the look
	// has the number of a later moment.
	if old.quiet() {
		s.moments++
	}
}

// reuse keeps a slot for another command if it can be renewed, and otherwise releases it. The caller has called
// emptied, and nobody has asked the launcher to signal the slot's processes.
func (s *slots) reuse(old *slot) {
	if !old.renewable() {
		s.release(old)
		return
	}
	s.mu.Lock()
	keep := !s.closed && len(s.ended) < maxEnded && s.endedAll.Load() < maxEndedAll // or a few more, of other boxes at the same time
	if keep {
		delete(s.taken, old)
		s.ended = append(s.ended, old)
		s.endedAll.Add(1)
	}
	s.mu.Unlock()
	if !keep {
		s.release(old)
	}
}

// dropEndedLocked returns the slots of ended commands to the caller.
func (s *slots) dropEndedLocked() (dropped []*slot) {
	dropped, s.ended = s.ended, nil
	s.endedAll.Add(-int64(len(dropped)))
	return dropped
}

// dropEnded gives back the slots of ended commands: when the box is idle, and when a process starts that stays in the
// box, because no moment is quiet while that runs.
func (s *slots) dropEnded() {
	s.mu.Lock()
	dropped := s.dropEndedLocked()
	s.mu.Unlock()
	for _, old := range dropped {
		s.release(old)
	}
}

// renewable reports whether the slot may serve another command. The slot of a spare has nothing left to start one.
func (s *slot) renewable() bool {
	s.reading.Lock()
	defer s.reading.Unlock()
	return s.birth != nil && s.memory == 0 && s.stats != nil && s.last != nil && s.stats.Renewable(*s.last)
}

// renewed reports whether the slot has served a command before.
func (s *slot) renewed() bool {
	s.reading.Lock()
	defer s.reading.Unlock()
	return s.stats != nil && s.stats.Renewals() > 0
}

// renewNever gives up descriptors of a slot that serves one process.
func (s *slot) renewNever() {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.stats.RenewNever()
}

// quiet reports whether no process is in the box's work.
func (s *slot) quiet() bool {
	s.reading.Lock()
	defer s.reading.Unlock()
	return s.stats.Quiet()
}

// renew makes the slot count for another command.
func (s *slot) renew() bool {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.last = nil
	return s.stats.Renew()
}
