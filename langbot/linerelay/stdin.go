package linerelay

import (
	"context"
	"sync"

	"github.com/boxd/boxd/engine"
)

// maxQueued is how much may wait for the process before no more is read of the
// client; one message more may be read by then.
const maxQueued = 1 << 20

// stdinQueue is what clients sent and the process has not taken yet. It belongs to
// the relay, not to a connection: a message that was received is handed over whole,
// whatever becomes of the client, so that nobody finds half a line before its own.
type stdinQueue struct {
	ctx context.Context // ends with the relay
	in  engine.Input
	wg  *sync.WaitGroup // of the relay

	mu       sync.Mutex
	messages [][]byte
	size     int
	feeding  bool
	over     bool          // nothing is taken any more
	moved    chan struct{} // closed and replaced when there is more room
}

// put queues a message, which it takes. It waits for room until ctx ends, and drops
// what the process does not take any more.
func (q *stdinQueue) put(ctx context.Context, message []byte) {
	for {
		moved := q.tryPut(message)
		if moved == nil {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// tryPut returns what to wait for if there is no room.
func (q *stdinQueue) tryPut(message []byte) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.over || q.in == nil || q.ctx.Err() != nil:
		return nil
	case q.size >= maxQueued:
		return q.moved
	}
	q.messages = append(q.messages, message)
	q.size += len(message)
	if !q.feeding {
		q.feeding = true
		q.wg.Go(q.feed)
	}
	return nil
}

// feed hands over what there is, one message after the other.
func (q *stdinQueue) feed() {
	for {
		message := q.first()
		if message == nil {
			return
		}
		// Nobody else writes, so the offset stays what it is. An error is that of a
		// process that does not read any more, or of a relay that ends.
		err := q.in.Write(q.ctx, q.in.Accepted(), message)
		q.remove(len(message), err)
	}
}

// first returns the next message, or nil if there is none or nobody to take it.
func (q *stdinQueue) first() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.messages) == 0 {
		q.feeding = false
		return nil
	}
	return q.messages[0]
}

func (q *stdinQueue) remove(size int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.messages[0] = nil
	q.messages = q.messages[1:]
	q.size -= size
	if err != nil {
		q.over, q.messages, q.size = true, nil, 0
	}
	close(q.moved)
	q.moved = make(chan struct{})
}
