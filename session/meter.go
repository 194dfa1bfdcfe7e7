package session

import (
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/session/history"
)

// The memory of a box that is used is looked at every sampleEvery, and the life of each box is counted
// every meterEvery: an abrupt end of the host loses at most that. A box that is not used is looked
// at soon after it was made, and when it is counted. The bytes that boxes have moved over their networks
// are recorded every sampleEvery.
const (
	sampleEvery = 10 * time.Second
	meterEvery  = time.Minute
	// meterPause is the least time between two countings because somebody asks for usage.
	meterPause = 5 * time.Second
	// lookTimeout bounds how long anyone waits for one look at the memory of a box.
	lookTimeout = 2 * time.Second
)

// meter measures the life of a box. session.mu guards it.
type meter struct {
	box     engine.LiveBox // nil: there is none
	since   time.Time      // up to when it has been counted
	at      time.Time      // up to when memory has been added up
	memory  int64          // up to then and not counted yet, in MiB·ms
	level   int64          // bytes at the last look; below 0: not known
	looked  time.Time      // when that was; stays when the box has ended
	looking bool           // somebody is looking
}

// beginMeterLocked begins to measure box. since is up to when an earlier manager has counted it, or when
// that made it.
func (s *session) beginMeterLocked(box engine.LiveBox, since time.Time) {
	now := time.Now()
	since = now.Add(-max(0, now.Sub(since))) // by the monotonic clock, which is not set
	s.meter = meter{box: box, since: since, at: since, looked: since, level: -1}
}

// advance adds up memory until now, when the box has level bytes. It is taken to have changed evenly,
// and not at all before the first look.
func (m *meter) advance(now time.Time, level int64) {
	before := m.level
	if before < 0 {
		before = level
	}
	m.memory += history.MemoryTime((before+level)/2, now.Sub(m.at))
	m.at = now
}

// look looks at the memory of the box. It returns false if that takes too long.
func (s *session) look() bool {
	s.mu.Lock()
	box := s.meter.box
	if box == nil || s.meter.looking {
		s.mu.Unlock()
		return true
	}
	s.meter.looking = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { // not joined: a launcher that hangs must not hold up the manager's end
		defer close(done)
		u, err := box.Usage()
		s.mu.Lock()
		defer s.mu.Unlock()
		m := &s.meter
		if m.box != box {
			return
		}
		m.looking = false
		if err == nil && u.Memory != nil { // otherwise the level stays as it was
			m.advance(time.Now(), *u.Memory)
			m.level, m.looked = *u.Memory, m.at
		}
	}()
	timeout := time.NewTimer(lookTimeout)
	defer timeout.Stop()
	select {
	case <-done:
		return true
	case <-timeout.C:
	case <-s.m.ctx.Done():
	}
	return false
}

// count adds the life of the box up to now to the usage. ended, if not nil, is a box that has ended or is
// about to, and is not measured any more: its end does not wait for a look, and the next box may be
// there already. If the history cannot be written, the next call counts it; a life that has ended
// is lost then.
func (s *session) count(ended engine.LiveBox) {
	s.metering.Lock()
	defer s.metering.Unlock()
	s.mu.Lock()
	if s.meter.box == nil || ended != nil && s.meter.box != ended {
		s.mu.Unlock()
		return
	}
	now := time.Now()
	if s.meter.level >= 0 { // otherwise the first look counts it
		s.meter.advance(now, s.meter.level)
	}
	m, resolved := s.meter, s.record.Resolved
	if ended != nil {
		s.meter = meter{looked: m.looked} // which the ends of its processes ask for
	}
	s.mu.Unlock()
	lived := now.Sub(m.since).Truncate(time.Millisecond) // the rest is part of the next period
	e := s.m.entry(s.key, resolved, nil)
	e.Box, e.Period, e.Memory = m.box.ID(), true, m.memory
	e.EndedAt = time.Now().Add(-time.Since(m.since.Add(lived))).Round(0)
	e.StartedAt = e.EndedAt.Add(-lived)
	if err := s.m.history.Append(e); err != nil || ended != nil { // it reports its error
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meter.box == m.box {
		s.meter.since = m.since.Add(lived)
		s.meter.memory -= m.memory
	}
}

// forgetMeter forgets what the history keeps of the session so that a successor can continue to measure
// its box. The session is removed.
func (s *session) forgetMeter() {
	s.mu.Lock()
	e := s.m.entry(s.key, s.record.Resolved, nil)
	s.mu.Unlock()
	e.Period, e.Gone = true, true
	e.StartedAt = time.Now().Round(0)
	e.EndedAt = e.StartedAt
	_ = s.m.history.Append(e) // reports its error; the history forgets it later
}

// unsampled returns what memory a program used over its time, unless somebody has looked at the box
// meanwhile, which includes it: its peak all the time.
func (s *session) unsampled(started time.Time, r *engine.Receipt) int64 {
	s.mu.Lock()
	seen := !started.After(s.meter.looked)
	s.mu.Unlock()
	if seen || r.MemoryPeak == nil {
		return 0
	}
	return history.MemoryTime(*r.MemoryPeak, r.Wall)
}

// meterBoxes measures all boxes until the manager closes.
func (m *Manager) meterBoxes() {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		m.noteNetworks()
		m.measureBoxes(n%int(meterEvery/sampleEvery) == 0)
	}
}

// measureBoxes looks at the boxes that are used; with all at every box, whose life it counts.
func (m *Manager) measureBoxes(all bool) {
	answers := true
	for _, s := range m.all("") {
		s.mu.Lock()
		used := s.uses > 0 || s.running > 0 || s.meter.level < 0
		s.mu.Unlock()
		if answers && (all || used) {
			answers = s.look()
		}
		if all {
			s.count(nil)
		}
	}
}

// countBoxes counts the lives of all boxes up to now.
func (m *Manager) countBoxes() {
	for _, s := range m.all("") {
		s.count(nil)
	}
}

// countForUsage is countBoxes for somebody who asks, unless somebody has asked lately.
func (m *Manager) countForUsage() {
	last, now := m.counted.Load(), m.now()
	if last > 0 && now < time.Duration(last)+meterPause || !m.counted.CompareAndSwap(last, int64(max(1, now))) {
		return
	}
	m.countBoxes()
}
