package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/internal/wsconn"
)

// smallRead is the size of the buffer that an idle stream keeps. A stream that fills it
// borrows one that has room for a whole Data frame.
const smallRead = 4 << 10

var largeBuffers = sync.Pool{New: func() any { return new([maxToClient]byte) }}

// maxLarge bounds the large buffers in use, to 64 MiB, because a slow peer keeps one for as
// long as it likes. A stream that gets none continues with its small buffer.
const maxLarge = 256

var largeInUse atomic.Int64

// borrowLarge returns a large buffer and the function that returns it, or nil.
func borrowLarge() (buf []byte, giveBack func()) {
	if largeInUse.Add(1) > maxLarge {
		largeInUse.Add(-1)
		return nil, nil
	}
	b := largeBuffers.Get().(*[maxToClient]byte)
	return b[:], func() {
		largeBuffers.Put(b)
		largeInUse.Add(-1)
	}
}

// outStream is an output stream on its way to one client.
type outStream struct {
	name  Stream
	out   Output
	bytes *atomic.Int64 // counts the payload, for Counters
	first Bounds
	wake  chan struct{} // has an element when acked has changed

	mu    sync.Mutex
	sent  int64 // offset up to which everything was sent, gaps included
	acked int64
}

func newOutStream(name Stream, out Output, bytes *atomic.Int64) *outStream {
	return &outStream{name: name, out: out, bytes: bytes, wake: make(chan struct{}, 1)}
}

func (s *outStream) sentTo() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

func (s *outStream) advance(to int64) {
	s.mu.Lock()
	s.sent = to
	s.mu.Unlock()
}

// acknowledge records that the client has consumed the stream up to f.offset.
func (c *conn) acknowledge(f ackFrame) *closing {
	s := c.stdout
	if f.stream == Stderr {
		s = c.stderr
	}
	if s == nil {
		return closeBroken(malformed("Ack of %v, which this process does not have", f.stream))
	}
	s.mu.Lock()
	sent, acked := s.sent, s.acked
	ok := f.offset >= acked && f.offset <= sent
	if ok {
		s.acked = f.offset
	}
	s.mu.Unlock()
	if !ok {
		return closeBroken(malformed("Ack of %v at %d: want %d to %d", f.stream, f.offset, acked, sent))
	}
	if c.writer.Load() {
		s.out.Release(f.offset)
	}
	wake(s.wake)
	return nil
}

// waitRoom waits until something may be sent, and returns how much, at most MaxData. It
// returns 0 if the connection ends or the process is removed.
func (c *conn) waitRoom(s *outStream) int {
	if !c.req.flow {
		return MaxData
	}
	for {
		s.mu.Lock()
		room := c.hub.o.Window - (s.sent - s.acked)
		s.mu.Unlock()
		if room > 0 {
			return int(min(room, MaxData))
		}
		select {
		case <-s.wake:
		case <-c.hub.removed:
			return 0
		case <-c.ctx.Done():
			return 0
		}
	}
}

// pump sends a stream until its end.
func (c *conn) pump(s *outStream) {
	err := c.relay(s)
	if err != nil && c.ctx.Err() == nil {
		if !c.over(5 * time.Second) {
			c.cancel(closeFailed("reading %v: %v", s.name, err))
			return
		}
		// The process is gone, and so is the output that was not read yet: report the gap,
		// then the exit.
		if _, end := s.out.Bounds(); end > s.sentTo() {
			c.sendGap(s, end)
		}
	}
	if c.ctx.Err() == nil && c.pumping.Add(-1) == 0 {
		close(c.drained)
	}
}

// over reports whether the process ends or is removed within atMost.
func (c *conn) over(atMost time.Duration) bool {
	return wsconn.Within(atMost, c.live.Done()) && c.ctx.Err() == nil
}

// relay sends a stream. It returns nil at the end of the stream.
func (c *conn) relay(s *outStream) error {
	small := make([]byte, dataHeader+smallRead)
	ctx, large := c.live, false
	if oldest, _ := s.out.Bounds(); s.sentTo() < oldest {
		c.sendGap(s, oldest) // no read may follow that would show it
	}
	for {
		// No output follows the end of the process, so ReadAt must not wait for more.
		ended := ctx == c.ctx
		if ended {
			if _, end := s.out.Bounds(); s.sentTo() >= end {
				return nil
			}
		}
		room := c.waitRoom(s)
		if room == 0 || isClosed(c.hub.removed) {
			return errRemoved
		}
		n, full, err := c.relayOnce(ctx, s, small, large, room)
		large = full || large && n > smallRead
		switch {
		case err == io.EOF:
			return nil
		case err != nil && !ended && c.live.Err() != nil && c.ctx.Err() == nil:
			ctx = c.ctx
		case err != nil:
			return err
		}
	}
}

var errRemoved = errors.New("the process was removed")

// relayOnce reads once and sends the result. full reports that there is probably more.
func (c *conn) relayOnce(ctx context.Context, s *outStream, buf []byte, large bool, room int) (n int, full bool, err error) {
	if large {
		if b, giveBack := borrowLarge(); b != nil {
			defer giveBack()
			buf = b
		}
	}
	p := buf[dataHeader:min(len(buf), dataHeader+room)]
	off := s.sentTo()
	n, at, err := s.out.ReadAt(ctx, p, off)
	if n == 0 && err != nil {
		return 0, false, err
	}
	if n <= 0 || n > len(p) || at < off {
		return 0, false, fmt.Errorf("reading %s from offset %d: the engine returned %d bytes at offset %d, of at most %d", s.name, off, n, at, len(p))
	}
	if at > off {
		c.sendGap(s, at)
	}
	putData(buf, s.name, at)
	s.advance(at + int64(n))
	c.send(buf[:dataHeader+n])
	s.bytes.Add(int64(n))
	c.touch()
	return n, n == len(p), err
}

// sendGap tells the client that everything below the offset to is gone.
func (c *conn) sendGap(s *outStream, to int64) {
	from := s.sentTo()
	s.advance(to)
	c.hub.o.Counters.LostBytes.Add(to - from)
	c.send(appendGap(nil, Gap{Stream: s.name, From: from, To: to}))
}
