package gateway

import (
	"sync"

	"github.com/boxd/boxd/internal/budget"
)

// Bounds of a queue.
const (
	maxQueued      = 1024
	maxQueuedBytes = 32 << 20
)

// Bounds of the bytes in all queues: of all tenants, and of one.
const (
	maxHeld     = 256 << 20
	maxHeldEach = 64 << 20
)

// account is the part of a budget that one tenant has.
type account struct {
	budget *budget.Budget
	tenant string
}

// queue holds encoded messages for one reader, who may be slow. What it holds counts in an account until the
// reader asks for the next message. The reader calls drop when it stops.
type queue struct {
	account account
	most    int // messages
	bytes   int // of them

	mu      sync.Mutex
	list    []queued
	size    int // bytes in list
	reading int // counted bytes of the message that the reader has
	closed  bool
	wake    chan struct{} // has a value after each change
}

// queued is a message in a queue.
type queued struct {
	b       []byte
	counted int // bytes in the account
}

func newQueue(a account) *queue {
	return &queue{account: a, most: maxQueued, bytes: maxQueuedBytes, wake: make(chan struct{}, 1)}
}

// push appends a message. It reports false if the queue is full or closed, or the account is used up.
func (q *queue) push(b []byte) bool { return q.put(b, false, true) }

// last appends the last message, however full the queue is, and closes the queue. It reports false if
// the queue is closed, or the account is used up.
func (q *queue) last(b []byte) bool { return q.put(b, true, true) }

// end closes the queue, with a short last message, which does not count, unless b is nil.
func (q *queue) end(b []byte) { q.put(b, true, false) }

func (q *queue) put(b []byte, last, count bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || !last && (len(q.list) >= q.most || q.size+len(b) > q.bytes) {
		return false
	}
	m := queued{b: b}
	if count {
		if m.counted = len(b); !q.account.budget.Try(q.account.tenant, int64(m.counted)) {
			return false
		}
	}
	if b != nil {
		q.list = append(q.list, m)
		q.size += len(b)
	}
	q.closed = last
	q.signal()
	return true
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// limit changes the bounds of the queue.
func (q *queue) limit(most, bytes int) {
	q.mu.Lock()
	q.most, q.bytes = most, bytes
	q.mu.Unlock()
}

// pop returns the next message; nil if there is none now. last means that none follows.
func (q *queue) pop() (b []byte, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.give(q.reading)
	q.reading = 0
	if len(q.list) > 0 {
		b, q.reading = q.list[0].b, q.list[0].counted
		q.list[0] = queued{}
		q.list = q.list[1:]
		q.size -= len(b)
	}
	return b, q.closed && len(q.list) == 0
}

// drop closes the queue and forgets what it has. Its reader calls it, and nothing after it.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.reading
	for _, m := range q.list {
		n += m.counted
	}
	q.give(n)
	q.list, q.size, q.reading, q.closed = nil, 0, 0, true
	q.signal()
}

func (q *queue) give(n int) {
	if n > 0 {
		q.account.budget.Give(q.account.tenant, int64(n))
	}
}

// next waits for the next message. It reports false when there is none any more, or done is closed.
func (q *queue) next(done <-chan struct{}) ([]byte, bool) {
	for {
		b, last := q.pop()
		switch {
		case b != nil:
			return b, true
		case last:
			return nil, false
		}
		select {
		case <-q.wake:
		case <-done:
			return nil, false
		}
	}
}
