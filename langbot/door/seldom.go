package door

import (
	"sync"
	"time"
)

// seldom lets one event in ten seconds into the log: strangers could fill it.
type seldom struct {
	mu    sync.Mutex
	last  time.Time
	count int
}

// now counts an event. If it may be logged, it returns how many there were since the
// last that was, with this one.
func (s *seldom) now() (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	if !s.last.IsZero() && time.Since(s.last) < 10*time.Second {
		return 0, false
	}
	n := s.count
	s.last, s.count = time.Now(), 0
	return n, true
}
