package linerelay

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/boxd/boxd/internal/wsconn"
)

// batchSize is about how many bytes of frames are written at once.
const batchSize = 128 << 10

// mark is the offset up to which the output is done once a batch has been written up to
// pos.
type mark struct {
	pos  int
	done int64
}

// stream is the output on its way to one client.
type stream struct {
	*splitter
	restSince time.Time // since when an incomplete line has waited; zero if none does
	lastRead  time.Time // when output last arrived
	burst     int       // bytes that arrived without a long pause
	batch     []byte    // frames that are not written yet
	marks     []mark
}

// pump sends the output until its end, or that of the connection.
func (c *conn) pump() {
	defer close(c.pumped)
	select {
	case c.relay.output <- struct{}{}: // no other connection reads or releases meanwhile
		defer func() { <-c.relay.output }()
	case <-c.ctx.Done():
	}
	if c.ctx.Err() != nil {
		return // with both ready, the select above chooses either
	}
	out := c.relay.src.Stdout
	s := stream{splitter: newSplitter(out.Released())}
	defer s.release()
	err := c.relayOutput(&s)
	switch {
	case err == nil:
		c.cancel(closeExited)
	case c.ctx.Err() == nil:
		c.cancel(closeFailed)
	}
}

// relayOutput sends the output. It returns nil at the end of the output.
func (c *conn) relayOutput(s *stream) error {
	live, stop := c.whileRunning()
	defer stop()
	for c.ctx.Err() == nil {
		ctx, ended := live, live.Err() != nil
		if ended {
			// No more output follows, so ReadAt must not wait for it.
			if _, end := c.relay.src.Stdout.Bounds(); s.end() >= end {
				return c.sendRest(s, true)
			}
			ctx = c.ctx
		}
		err := c.relayOnce(ctx, s)
		switch {
		case err == nil:
		case c.ctx.Err() != nil:
			return err
		case err == io.EOF:
			err := c.sendRest(s, true)
			c.awaitEnd(live)
			return err
		case live.Err() != nil && !ended: // there may be more, which is readable while it is held
		case isClosed(c.relay.src.Gone):
			return c.sendRest(s, true)
		default:
			// If the box was removed, Done or Gone is about to be closed.
			if !c.awaitEnd(live) {
				return err
			}
			return c.sendRest(s, true)
		}
	}
	return c.ctx.Err()
}

// whileRunning returns a context that ends with the connection, and when the process ends.
func (c *conn) whileRunning() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(c.ctx)
	c.wg.Go(func() {
		defer cancel()
		select {
		case <-c.relay.src.Done:
		case <-c.relay.src.Gone:
		case <-ctx.Done():
		}
	})
	return ctx, cancel
}

// awaitEnd waits a little for the end of the process, and reports whether it has ended. A
// client that is told of the end must not find the process running afterwards; but the
// process may merely have closed its output.
func (c *conn) awaitEnd(live context.Context) bool {
	return wsconn.Within(c.relay.times.end, live.Done()) && c.ctx.Err() == nil
}

// relayOnce waits for output and sends it.
func (c *conn) relayOnce(ctx context.Context, s *stream) error {
	space := s.space()
	n, at, err := c.readNext(ctx, s, space)
	if n <= 0 && err != nil {
		return err
	}
	if n < 0 || n > len(space) || at < s.end() {
		return fmt.Errorf("reading output from offset %d: the engine returned %d bytes at offset %d, of at most %d", s.end(), n, at, len(space))
	}
	if at > s.end() { // the bytes in between were overwritten
		if err := c.sendRest(s, true); err != nil {
			return err
		}
		s.skip(at)
	}
	s.add(n)
	c.relay.touch()
	now := time.Now()
	if now.Sub(s.lastRead) >= c.relay.times.document {
		s.burst = 0
	}
	s.lastRead, s.burst = now, s.burst+n
	if len(s.buf) == smallBuffer && cap(s.batch) > 4*smallBuffer {
		s.batch, s.marks = nil, nil // the flood is over
	}
	for p, ok := s.line(); ok; p, ok = s.line() {
		if err := c.send(s, p); err != nil {
			return err
		}
	}
	if s.restSince.IsZero() && s.hasRest(false) {
		s.restSince = now
	}
	return c.flush(s)
}

// readNext reads once. If it has to wait longer than patience for the rest of an incomplete
// line, it sends what there is of the line.
func (c *conn) readNext(ctx context.Context, s *stream, p []byte) (n int, at int64, err error) {
	out := c.relay.src.Stdout
	if s.hasRest(false) {
		soon, cancel := context.WithTimeout(ctx, c.patience(s))
		n, at, err = out.ReadAt(soon, p, s.end())
		cancel()
		if n > 0 || err == nil || ctx.Err() != nil || soon.Err() == nil {
			return n, at, err
		}
		if err := c.sendRest(s, false); err != nil {
			return 0, at, err
		}
	}
	return out.ReadAt(ctx, p, s.end())
}

// fullBuffer is the least that programs collect before they write to a pipe. It is also how
// much they can write at once (PIPE_BUF, pipe(7)).
const fullBuffer = 4 << 10

// patience returns how long to wait for the rest of an incomplete line before sending it. A
// prompt has to be sent soon, even if it arrives byte by byte. But a program that writes
// much writes full buffers, which end anywhere in a line, and a process with limited CPU
// time may get none for 100 ms (the period of cpu.max): a line, and a document most of all,
// is useless in parts.
func (c *conn) patience(s *stream) time.Duration {
	t, rest := &c.relay.times, s.buf[s.r:s.w]
	if s.open || s.burst >= fullBuffer || rest[0] == '{' {
		return t.document
	}
	return min(t.idle, max(t.document-time.Since(s.restSince), 0))
}

// sendRest sends everything that was read, without waiting for the end of its line. final
// says that no more output follows it.
func (c *conn) sendRest(s *stream, final bool) error {
	for p, ok := s.rest(final); ok; p, ok = s.rest(final) {
		if err := c.send(s, p); err != nil {
			return err
		}
	}
	return c.flush(s)
}

// send puts a piece into the batch, and writes the batch if it is large.
func (c *conn) send(s *stream, p piece) error {
	opcode := byte(opContinuation)
	if p.first {
		opcode = opText
	}
	s.restSince = time.Time{}
	s.batch = appendFrame(s.batch, opcode, p.last, p.text)
	s.marks = append(s.marks, mark{len(s.batch), s.done()})
	if len(s.batch) < batchSize {
		return nil
	}
	return c.flush(s)
}

// flush writes the batch, and releases the output that was written in whole frames.
func (c *conn) flush(s *stream) error {
	if len(s.batch) == 0 {
		return nil
	}
	n, err := c.wire.Write(s.batch)
	written := len(s.marks)
	for err != nil && written > 0 && s.marks[written-1].pos > n {
		written--
	}
	if written > 0 {
		c.relay.src.Stdout.Release(s.marks[written-1].done)
	}
	s.batch, s.marks = s.batch[:0], s.marks[:0]
	if err != nil {
		c.cancel(closeLost)
	}
	return err
}

// isClosed reports whether c is closed; a nil channel is not.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
