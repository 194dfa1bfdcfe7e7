package linerelay

import (
	"context"
	"fmt"
	"io"
	"time"
)

// batchSize is how many bytes of frames are written at once, about.
const batchSize = 128 << 10

// mark says how far the stream is done once a batch has been written up to pos.
type mark struct {
	pos  int
	done int64
}

// stream is the output on its way to one client.
type stream struct {
	*splitter
	since time.Time // from when on the rest has waited; zero without
	last  time.Time // when something came
	burst int       // bytes that came without a long pause
	batch []byte    // frames that are not written yet
	marks []mark
}

// pump sends the output until its end, or that of the connection.
func (c *conn) pump() {
	defer close(c.pumped)
	select {
	case c.relay.output <- struct{}{}: // nobody else reads or releases
		defer func() { <-c.relay.output }()
	case <-c.ctx.Done():
	}
	if c.ctx.Err() != nil {
		return // the select above takes either if it could take both
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

// relayOutput sends the output until its end, which is nil, or an error.
func (c *conn) relayOutput(s *stream) error {
	live, stop := c.whileRunning()
	defer stop()
	for ended := false; c.ctx.Err() == nil; {
		if ended = ended || live.Err() != nil; ended {
			// What ReadAt would wait for now never comes.
			if _, end := c.relay.src.Stdout.Bounds(); s.end() >= end {
				return c.finishStream(s)
			}
		}
		ctx := live
		if ended {
			ctx = c.ctx
		}
		err := c.relayOnce(ctx, s)
		switch {
		case err == nil:
		case c.ctx.Err() != nil:
			return err
		case err == io.EOF:
			err := c.finishStream(s)
			c.awaitEnd(live)
			return err
		case isClosed(c.relay.src.Gone):
			return c.finishStream(s)
		case live.Err() != nil && !ended:
		default:
			// It may be that the box was removed, which is about to be known.
			if !c.awaitEnd(live) {
				return err
			}
			return c.finishStream(s)
		}
	}
	return c.ctx.Err()
}

// whileRunning returns a context that ends with the connection and when the process
// has ended.
func (c *conn) whileRunning() (context.Context, func()) {
	ctx, cancel := context.WithCancel(c.ctx)
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		defer cancel()
		select {
		case <-c.relay.src.Done:
		case <-c.relay.src.Gone:
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); <-joined }
}

// awaitEnd waits a little until the process is known to have ended, so that a client
// that is told does not find it running. It may have closed its output only.
func (c *conn) awaitEnd(live context.Context) bool {
	t := time.NewTimer(c.relay.times.end)
	defer t.Stop()
	select {
	case <-live.Done():
		return c.ctx.Err() == nil
	case <-t.C:
		return false
	}
}

// relayOnce waits for output and sends what there is of it.
func (c *conn) relayOnce(ctx context.Context, s *stream) error {
	space := s.space()
	n, at, err := c.read1(ctx, s, space)
	if n <= 0 && err != nil {
		return err
	}
	if n < 0 || n > len(space) || at < s.end() {
		return fmt.Errorf("reading output from offset %d: the engine returned %d bytes at offset %d, of at most %d", s.end(), n, at, len(space))
	}
	if at > s.end() { // what is in between was overwritten
		if err := c.sendRest(s, true); err != nil {
			return err
		}
		s.skip(at)
	}
	s.add(n)
	c.relay.touch()
	now := time.Now()
	if now.Sub(s.last) >= c.relay.times.document {
		s.burst = 0
	}
	s.last, s.burst = now, s.burst+n
	if len(s.buf) == smallBuffer && cap(s.batch) > 4*smallBuffer {
		s.batch, s.marks = nil, nil // the flood is over
	}
	for p, ok := s.line(); ok; p, ok = s.line() {
		if err := c.send(s, p); err != nil {
			return err
		}
	}
	if s.since.IsZero() && s.hasRest(false) {
		s.since = now
	}
	return c.flush(s)
}

// read1 reads once. While it waits for more, what was not sent because its line has no
// end is sent.
func (c *conn) read1(ctx context.Context, s *stream, p []byte) (n int, at int64, err error) {
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

// fullBuffer is what programs gather before they write, at least, if their output is a
// pipe; it is also what they can write at once (PIPE_BUF, pipe(7)).
const fullBuffer = 4 << 10

// patience is how long more output is waited for before the rest is sent. A prompt is
// wanted soon, also if it comes in drops. But who writes much writes full buffers, which
// end anywhere, and a process whose processor time is limited may have none for 100 ms
// (the period of cpu.max): a line, most of all a document, is of no use in parts.
func (c *conn) patience(s *stream) time.Duration {
	t, rest := &c.relay.times, s.buf[s.r:s.w]
	if s.open || s.burst >= fullBuffer || rest[0] == '{' {
		return t.document
	}
	return min(t.idle, max(t.document-time.Since(s.since), 0))
}

// sendRest sends what there is, without waiting for the end of its line.
func (c *conn) sendRest(s *stream, final bool) error {
	for p, ok := s.rest(final); ok; p, ok = s.rest(final) {
		if err := c.send(s, p); err != nil {
			return err
		}
	}
	return c.flush(s)
}

func (c *conn) finishStream(s *stream) error { return c.sendRest(s, true) }

// send puts a piece into the batch, and writes the batch if it is large.
func (c *conn) send(s *stream, p piece) error {
	opcode := byte(opContinuation)
	if p.first {
		opcode = opText
	}
	s.since = time.Time{}
	s.batch = appendFrame(s.batch, opcode, p.last, p.text)
	s.marks = append(s.marks, mark{len(s.batch), s.done()})
	if len(s.batch) < batchSize {
		return nil
	}
	return c.flush(s)
}

// flush writes the batch, and releases what of the output was written whole.
func (c *conn) flush(s *stream) error {
	if len(s.batch) == 0 {
		return nil
	}
	n, err := c.wire.frames(s.batch)
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

// isClosed says whether c is closed; nil is not.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
