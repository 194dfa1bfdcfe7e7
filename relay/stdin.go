package relay

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"syscall"
	"time"
)

// stdinQueue holds stdin that a writer has sent and the process has not accepted yet. The
// window that Hello announces bounds it.
type stdinQueue struct {
	ctx    context.Context // ends with the connection, and when another client takes over
	cancel context.CancelFunc
	wake   chan struct{} // has an element when pending or closing has changed

	mu       sync.Mutex
	pending  []byte // to be written next
	received int64  // offset after pending
	accepted int64  // offset up to which the process has accepted stdin
	closing  bool   // the client has ended stdin, after pending
	closed   bool   // the process accepts nothing more
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
		return nil // a repetition
	case q.ctx.Err() != nil || q.closed:
		q.received = end
		return nil // taken over, or the process does not read stdin
	case q.closing:
		return closeBroken(malformed("Stdin after CloseStdin"))
	case end-q.accepted > int64(c.hub.o.StdinWindow):
		return closeBroken(malformed("Stdin up to %d: the window ends at %d", end, q.accepted+int64(c.hub.o.StdinWindow)))
	}
	q.pending = append(q.pending, f.data[q.received-f.offset:]...)
	q.received = end
	wake(q.wake)
	return nil
}

// takeClose records that stdin ends after the bytes received so far.
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
	wake(q.wake)
	return nil
}

// feed passes stdin to the process. It may wait for the process to read; nothing else waits
// for it.
func (c *conn) feed() {
	q := &c.stdin
	var buf []byte
	for {
		select {
		case <-q.ctx.Done():
			return
		case <-q.wake:
		}
		q.mu.Lock()
		buf, q.pending = q.pending, buf[:0]
		off, last := q.received-int64(len(buf)), q.closing && !q.closed
		q.mu.Unlock()
		for part := range slices.Chunk(buf, MaxStdin) { // so that the client sees progress
			accepted, err := c.useStdin(func(in Input) error { return in.Write(q.ctx, off, part) })
			off += int64(len(part))
			if err == nil && accepted < off {
				err = errors.New("the process accepted less than was written")
			}
			if err != nil {
				c.stdinFailed(accepted, err)
				return
			}
			c.hub.o.Counters.StdinBytes.Add(int64(len(part)))
			c.stdinState(off, false)
		}
		if last {
			accepted, err := c.useStdin(func(in Input) error { return in.Close(q.ctx) })
			if err != nil {
				c.stdinFailed(accepted, err)
				return
			}
			c.stdinState(accepted, true)
		}
	}
}

// useStdin calls f, unless c is no longer the writer, and returns how much of stdin the
// process has accepted after that. No other connection uses stdin meanwhile.
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

// stdinFailed handles an error of stdin. If the process no longer reads, the client is told
// that stdin is closed; any other error ends the connection.
func (c *conn) stdinFailed(accepted int64, err error) {
	switch {
	case c.stdin.ctx.Err() != nil:
	case errors.Is(err, syscall.EPIPE), errors.Is(err, fs.ErrClosed), c.over(5 * time.Second):
		c.stdinState(accepted, true)
	case c.ctx.Err() == nil:
		c.cancel(closeFailed("writing stdin: %v", err))
	}
}

// stdinState records how much of stdin the process has accepted, and tells the client.
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
