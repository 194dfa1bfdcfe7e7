package api

import "sync"

// share keeps one tenant from taking all places of something: an eighth of them is left to
// the other tenants.
type share struct {
	most int // of one tenant

	mu    sync.Mutex
	taken map[string]int // by tenant; no entry means none
}

func newShare(places int) *share {
	return &share{most: max(places-places/8, 1), taken: map[string]int{}}
}

// takePlace takes a place, unless tenant has its share already. The caller calls freePlace.
func (s *share) takePlace(tenant string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[tenant] >= s.most {
		return false
	}
	s.taken[tenant]++
	return true
}

func (s *share) freePlace(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[tenant]--; s.taken[tenant] == 0 {
		delete(s.taken, tenant)
	}
}
