package launcher

import "sync"

// Bounds of the memory that requests in progress use: requestsMax for all of them, of which
// each takes the length of its frame, and requestCost for its goroutine.
const (
	requestsMax = 32 << 20
	requestCost = 16 << 10
)

// budget is a number of bytes that requests share.
type budget struct {
	mu   sync.Mutex
	free sync.Cond // signals give
	used int
}

func newBudget() *budget {
	b := &budget{}
	b.free.L = &b.mu
	return b
}

// take waits until n more bytes fit. A request that is larger than the whole budget waits
// until it is alone.
func (b *budget) take(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.used > 0 && b.used+n > requestsMax {
		b.free.Wait()
	}
	b.used += n
}

func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	b.free.Broadcast()
}
