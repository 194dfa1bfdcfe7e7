package session

import (
	"container/heap"
	"time"
)

// deadline is when to look at a session again: not later than it could expire.
type deadline struct {
	at    time.Duration // on the clock of Manager.now
	s     *session
	index int
}

// deadlines is a heap with the earliest deadline on top. Using a session only moves its own
// deadline back, and the heap learns that when the old deadline is due; so a use costs
// nothing here.
type deadlines []*deadline

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].at < d[j].at }
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

// Push is for package heap.
func (d *deadlines) Push(x any) {
	e := x.(*deadline)
	e.index = len(*d)
	*d = append(*d, e)
}

// Pop is for package heap.
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	e := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return e
}

// put makes sure that the expiry loop looks at s by the time at.
func (d *deadlines) put(s *session, at time.Duration) {
	switch {
	case s.at == nil:
		s.at = &deadline{at: at, s: s}
		heap.Push(d, s.at)
	case at < s.at.at:
		s.at.at = at
		heap.Fix(d, s.at.index)
	}
	s.armed.Store(true)
}

func (d *deadlines) drop(s *session) {
	if s.at != nil {
		heap.Remove(d, s.at.index)
		s.at = nil
	}
	s.armed.Store(false)
}

// deadlineLocked returns when the session ends if it is not used again; false means never,
// as things are. The caller holds s.mu.
func (s *session) deadlineLocked() (time.Duration, bool) {
	if s.removing || s.gone || s.record.State == Creating {
		return 0, false
	}
	if r := s.record.Retained; r != nil {
		return s.m.now() + time.Until(r.Until), !r.Until.IsZero() && s.uses == 0
	}
	busy := s.record.Resolved.Persistent || s.uses > 0 || s.pausedLocked() || (s.running+s.waiting > 0 && s.exempt)
	idle := time.Duration(s.lastUsed.Load()) + s.record.Resolved.IdleTTL.D()
	switch {
	case busy && s.lifeEnd == 0:
		return 0, false
	case busy:
		return s.lifeEnd, true
	case s.lifeEnd == 0:
		return idle, true
	}
	return min(idle, s.lifeEnd), true
}

// arm puts the session's deadline into the heap, unless an earlier one is there. The caller
// has changed something that the deadline depends on, and holds no lock.
//
// No deadline can be lost: the expiry loop clears armed before it looks at the session. So
// either the loop sees the change, or the caller sees that armed is false.
func (s *session) arm() {
	s.mu.Lock()
	at, ok := s.deadlineLocked()
	if s.uses > 0 && s.record.Retained == nil && !s.record.Resolved.Persistent && !s.removing && !s.gone && s.record.State != Creating {
		// release leaves an armed deadline as it is, so it must not be later than the
		// idle TTL could end.
		if look := s.m.now() + s.record.Resolved.IdleTTL.D(); !ok || look < at {
			at, ok = look, true
		}
	}
	s.mu.Unlock()
	if !ok {
		return
	}
	m := s.m
	m.mu.Lock()
	if m.sessions[s.key] == s {
		m.deadlines.put(s, at)
	}
	first := len(m.deadlines) > 0 && m.deadlines[0].s == s
	m.mu.Unlock()
	if first {
		select {
		case m.wake <- struct{}{}:
		default: // it has been woken already
		}
	}
}

// expire removes sessions that expire, until the manager closes.
func (m *Manager) expire() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-timer.C:
		case <-m.wake:
		}
		due, next := m.due()
		for _, s := range due {
			s.expireIfDue()
		}
		timer.Reset(next)
	}
}

// due takes the sessions whose deadline has passed out of the heap, and returns the time
// until the next deadline.
func (m *Manager) due() (list []*session, next time.Duration) {
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.deadlines) > 0 && m.deadlines[0].at <= now {
		s := m.deadlines[0].s
		m.deadlines.drop(s)
		list = append(list, s)
	}
	if len(m.deadlines) == 0 {
		return list, time.Hour
	}
	return list, m.deadlines[0].at - now
}

// expireIfDue begins the removal of a session that was idle, or has lived, for too long;
// any other session goes back into the heap.
func (s *session) expireIfDue() {
	now := s.m.now()
	s.mu.Lock()
	at, ok := s.deadlineLocked()
	if !ok || at > now {
		s.mu.Unlock()
		if ok {
			s.arm()
		}
		return
	}
	reason := "idle for " + s.record.Resolved.IdleTTL.D().String()
	if s.lifeEnd > 0 && s.lifeEnd <= now {
		reason = "lifetime of " + s.record.Resolved.MaxLifetime.String() + " is over"
	}
	if s.record.Retained != nil {
		reason = "its workspace was kept for " + s.record.Resolved.Retain
	}
	retain := s.retainLocked()
	begun := s.markRemovalLocked(reason)
	if begun {
		s.record.Expired, s.record.Retained = true, retain // a successor that finds a removal begun has to know
	}
	s.mu.Unlock()
	if begun {
		s.m.spawn(func() { s.teardown(removal{expired: true, reason: reason, caller: system}) })
	}
}
