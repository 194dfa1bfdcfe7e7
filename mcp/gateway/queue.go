package gateway

import "sync"

// Bounds of a queue. The last message of an exchange is always accepted.
const (
	maxQueued      = 1024
	maxQueuedBytes = 32 << 20
)

// queue holds encoded messages for a reader who may be slow.
type queue struct {
	mu     sync.Mutex
	list   [][]byte
	bytes  int
	closed bool
	wake   chan struct{} // has a value after each change
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

// push appends a message. It reports false if the queue is full or closed.
func (q *queue) push(b []byte) bool { return q.put(b, false) }

// end appends the last message, unless it is nil, and closes the queue.
func (q *queue) end(b []byte) { q.put(b, true) }

func (q *queue) put(b []byte, last bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || !last && (len(q.list) >= maxQueued || q.bytes+len(b) > maxQueuedBytes) {
		return false
	}
	if b != nil {
		q.list = append(q.list, b)
		q.bytes += len(b)
	}
	q.closed = last
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// pop returns the next message; nil if there is none now. last means that none follows.
func (q *queue) pop() (b []byte, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) > 0 {
		b = q.list[0]
		q.list[0] = nil
		q.list = q.list[1:]
		q.bytes -= len(b)
	}
	return b, q.closed && len(q.list) == 0
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
