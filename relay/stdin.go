package relay

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"syscall"
	"time"
)

// stdinQueue is what a writer sent and the process has not taken yet. It is
// bounded by the window that Hello announces.
type stdinQueue struct {
	ctx    context.Context // ends with the connection, and when it is taken over
	cancel context.CancelFunc
	wake   chan struct{}

	mu       sync.Mutex
	pending  []byte // to be written next
	received int64  // offset behind pending
	accepted int64  // offset up to which the process took it
	closing  bool   // stdin ends behind pending
	closed   bool   // nothing is taken any more
}

func (q *stdinQueue) init(ctx context.Context) {
	q.ctx, q.cancel = context.WithCancel(ctx)
	q.wake = make(chan struct{}, 1)
}

func (q *stdinQueue) begin(accepted int64) { q.received, q.accepted = accepted, accepted }

func (q *stdinQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// takeStdin queues what a client sent.
func (c *conn) takeStdin(f stdinFrame) *closing {
	q := &c.stdin
	if c.hub.src.Stdin == nil {
		return closeBroken(malformed("Stdin: this process has none"))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	end := f.offset + int64(len(f.data))
	switch {
	case f.offset > q.received:
		return closeBroken(malformed("Stdin at %d: bytes from %d on are missing", f.offset, q.received))
	case end <= q.received:
		return nil // sent again, and known
	case q.ctx.Err() != nil || q.closed:
		q.received = end
		return nil // taken over, or the process does not read stdin
	case q.closing:
		return closeBroken(malformed("Stdin behind CloseStdin"))
	case end-q.accepted > int64(c.hub.o.StdinWindow):
		return closeBroken(malformed("Stdin up to %d: the window ends at %d", end, q.accepted+int64(c.hub.o.StdinWindow)))
	}
	q.pending = append(q.pending, f.data[q.received-f.offset:]...)
	q.received = end
	q.signal()
	return nil
}

// takeClose notes that stdin ends behind what was received.
func (c *conn) takeClose(f closeStdinFrame) *closing {
	q := &c.stdin
	if c.hub.src.Stdin == nil {
		return closeBroken(malformed("CloseStdin: this process has none"))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.ctx.Err() != nil {
		return nil
	}
	if f.offset != q.received {
		return closeBroken(malformed("CloseStdin at %d: want %d", f.offset, q.received))
	}
	q.closing = true
	q.signal()
	return nil
}

// feed hands stdin to the process. It waits as long as the process does not read,
// which keeps nothing else waiting.
func (c *conn) feed() {
	var buf []byte
	for {
		select {
		case <-c.stdin.ctx.Done():
			return
		case <-c.stdin.wake:
		}
		q := &c.stdin
		q.mu.Lock()
		buf, q.pending = q.pending, buf[:0]
		off, last := q.received-int64(len(buf)), q.closing && !q.closed
		q.mu.Unlock()
		if !c.feedAll(buf, off) {
			return
		}
		if last && !c.closeStdin() {
			return
		}
	}
}

// useStdin calls f unless c is not the writer any more, and says how much of stdin
// was taken then. Nobody else uses stdin at the same time.
func (c *conn) useStdin(f func(Input) error) (accepted int64, err error) {
	select {
	case c.hub.stdin <- struct{}{}:
		defer func() { <-c.hub.stdin }()
	case <-c.stdin.ctx.Done():
	}
	if err := c.stdin.ctx.Err(); err != nil {
		return 0, err
	}
	err = f(c.hub.src.Stdin)
	return c.hub.src.Stdin.Accepted(), err
}

// awaitStdin waits until earlier writers have let go of stdin: their contexts have
// ended. It gives up if c is not the writer any more itself.
func (c *conn) awaitStdin() {
	select {
	case c.hub.stdin <- struct{}{}:
		<-c.hub.stdin
	case <-c.stdin.ctx.Done():
	}
}

// feedAll writes p to the process, at most a frame at a time so that the client
// sees progress. It returns false when stdin has ended for this connection.
func (c *conn) feedAll(p []byte, off int64) bool {
	for len(p) > 0 {
		n := min(len(p), MaxStdin)
		accepted, err := c.useStdin(func(in Input) error { return in.Write(c.stdin.ctx, off, p[:n]) })
		if err == nil && accepted < off+int64(n) {
			err = errors.New("less was taken than was written")
		}
		if err != nil {
			return c.stdinFailed(accepted, err)
		}
		off, p = off+int64(n), p[n:]
		c.hub.o.Counters.StdinBytes.Add(int64(n))
		c.stdinState(off, false)
	}
	return true
}

func (c *conn) closeStdin() bool {
	accepted, err := c.useStdin(func(in Input) error { return in.Close(c.stdin.ctx) })
	if err != nil {
		return c.stdinFailed(accepted, err)
	}
	c.stdinState(accepted, true)
	return true
}

// stdinFailed is what becomes of an error: a process that does not read any more
// is told to the client, anything else ends the connection.
func (c *conn) stdinFailed(accepted int64, err error) bool {
	switch {
	case c.stdin.ctx.Err() != nil:
		return false
	case errors.Is(err, syscall.EPIPE), errors.Is(err, fs.ErrClosed), c.over(5 * time.Second):
		c.stdinState(accepted, true)
	case c.ctx.Err() == nil:
		c.end(closeFailed("writing stdin: %v", err))
	}
	return false
}

// stdinState notes how far stdin was taken, and tells the client.
func (c *conn) stdinState(accepted int64, closed bool) {
	q := &c.stdin
	q.mu.Lock()
	q.accepted = accepted
	if closed {
		q.closed, q.pending = true, nil
	}
	q.mu.Unlock()
	c.send(appendStdinState(nil, StdinState{Accepted: accepted, Closed: closed}))
}
