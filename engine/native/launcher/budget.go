package launcher

import "sync"

// What the requests that are being answered may hold of this process: the bytes of
// their frames, and for each what its goroutine takes.
const (
	requestsMax = 32 << 20
	requestCost = 16 << 10
)

// budget is a number of bytes that requests share.
type budget struct {
	mu   sync.Mutex
	free sync.Cond // something was given back
	used int
}

func newBudget() *budget {
	b := &budget{}
	b.free.L = &b.mu
	return b
}

// take waits until n bytes more fit. What is larger than all of it waits until it
// is alone.
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
