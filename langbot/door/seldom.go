package door

import (
	"sync"
	"time"
)

// seldom admits one event in ten seconds to the log, which strangers could fill otherwise.
type seldom struct {
	mu    sync.Mutex
	last  time.Time
	count int
}

// now counts an event and reports whether it may be logged. If so, n is the number of
// events since the last one that was logged, including this one.
func (s *seldom) now() (n int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	if !s.last.IsZero() && time.Since(s.last) < 10*time.Second {
		return 0, false
	}
	n = s.count
	s.last, s.count = time.Now(), 0
	return n, true
}
