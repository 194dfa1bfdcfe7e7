// Package budget bounds how many bytes of something are held at once, by everybody together and by each
// tenant. It decides nothing about who may ask.
package budget

import (
	"context"
	"sync"
)

// Budget counts bytes. It is safe for concurrent use.
type Budget struct {
	most, each int64 // of all, and of one tenant

	mu      sync.Mutex
	all     int64
	tenants map[string]int64
	freed   chan struct{} // closed and replaced when bytes are given back
}

// New returns a budget of most bytes, of which one tenant may have each.
func New(most, each int64) *Budget {
	return &Budget{most: most, each: each, tenants: map[string]int64{}, freed: make(chan struct{})}
}

// Take counts n bytes for tenant. It waits until there is room for them, or until ctx ends: then it reports
// false, and whether it is the tenant itself that has too many.
func (b *Budget) Take(ctx context.Context, tenant string, n int64) (ok, own bool) {
	for {
		b.mu.Lock()
		mine, all, freed := b.tenants[tenant]+n, b.all+n, b.freed
		if mine <= b.each && all <= b.most {
			b.tenants[tenant], b.all = mine, all
			b.mu.Unlock()
			return true, false
		}
		b.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return false, mine > b.each
		}
	}
}

// Try counts n bytes for tenant if there is room for them now, and reports whether there was.
func (b *Budget) Try(tenant string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	mine, all := b.tenants[tenant]+n, b.all+n
	if mine > b.each || all > b.most {
		return false
	}
	b.tenants[tenant], b.all = mine, all
	return true
}

// Held returns how many bytes are held.
func (b *Budget) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all
}

// Give returns n bytes of tenant.
func (b *Budget) Give(tenant string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all -= n
	if b.tenants[tenant] -= n; b.tenants[tenant] == 0 {
		delete(b.tenants, tenant)
	}
	close(b.freed)
	b.freed = make(chan struct{})
}
