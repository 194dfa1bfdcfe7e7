package api

import "sync"

// share keeps one tenant from taking all places of something: an eighth is left to
// the others. The zero value has no places.
type share struct {
	most int // of one tenant

	mu    sync.Mutex
	taken map[string]int // by tenant; without those that have none
}

func newShare(places int) *share {
	return &share{most: max(places-places/8, 1), taken: map[string]int{}}
}

// take takes a place, which the caller gives back with give, unless tenant has its
// share already.
func (s *share) take(tenant string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[tenant] >= s.most {
		return false
	}
	s.taken[tenant]++
	return true
}

func (s *share) give(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[tenant]--; s.taken[tenant] == 0 {
		delete(s.taken, tenant)
	}
}
