package linerelay

import (
	"context"
	"sync"

	"github.com/boxd/boxd/engine"
)

// maxQueued is how many bytes may wait for the process before the relay stops reading from
// the client. One message more may have been read by then.
const maxQueued = 1 << 20

// stdinQueue holds messages that clients have sent and the process has not accepted yet.
// It belongs to the relay, not to a connection: each message is written whole, even if its
// client disconnects, so that the next client does not continue half a line.
type stdinQueue struct {
	ctx context.Context // ends with the relay
	in  engine.Input
	wg  *sync.WaitGroup // of the relay

	mu       sync.Mutex
	messages [][]byte
	size     int           // bytes of messages
	feeding  bool          // feed is running
	over     bool          // the process accepts nothing more
	moved    chan struct{} // closed and replaced when there is more room
}

// put queues a message, and takes ownership of it. It waits for room until ctx ends. If
// the process accepts nothing more, the message is dropped.
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

// tryPut returns the channel to wait for if there is no room.
func (q *stdinQueue) tryPut(message []byte) (moved <-chan struct{}) {
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

// feed writes the queued messages to the process, one after the other.
func (q *stdinQueue) feed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.messages) > 0 {
		message := q.messages[0]
		q.mu.Unlock()
		// There is no other writer, so the offset cannot change in between. Write fails if
		// the process no longer reads, or the relay ends.
		err := q.in.Write(q.ctx, q.in.Accepted(), message)
		q.mu.Lock()
		q.messages[0] = nil
		q.messages = q.messages[1:]
		q.size -= len(message)
		if err != nil {
			q.over, q.messages, q.size = true, nil, 0
		}
		close(q.moved)
		q.moved = make(chan struct{})
	}
	q.feeding = false
}
