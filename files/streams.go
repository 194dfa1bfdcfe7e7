package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/files/proto"
)

// maxListing bounds the names and symlink targets of a listing, in bytes altogether.
const maxListing = 16 << 20

// bounded passes on at most left bytes. More is an error, on which the engine stops
// reading.
type bounded struct {
	w    io.Writer
	left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	over := int64(len(p)) > b.left
	if over {
		p = p[:b.left]
	}
	n, err := b.w.Write(p)
	b.left -= int64(n)
	if err == nil && over {
		err = fmt.Errorf("%w: it is longer than was asked for", ErrProtocol)
	}
	return n, err
}

// lingering is how long an operation may go on after the end of its output.
const lingering = 10 * time.Second

// outlet passes the output of an operation on. It ends an operation whose output is not accepted,
// or has ended: a process of the box could otherwise stay for ever, silently.
type outlet struct {
	w      io.Writer
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	timer   *time.Timer // since the end of the output
	stopped bool
}

var _ io.ReaderFrom = (*outlet)(nil)

func (o *outlet) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		o.cancel(err)
	}
	return n, err
}

// ReadFrom implements io.ReaderFrom, by which an engine copies: so the outlet learns of the end.
func (o *outlet) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(struct{ io.Writer }{o}, r)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil && o.timer == nil && !o.stopped {
		o.timer = time.AfterFunc(lingering, func() {
			o.cancel(fmt.Errorf("%w: it closed its output, and was still running %v later", ErrProtocol, lingering))
		})
	}
	return n, err
}

// stop is called when the operation has ended.
func (o *outlet) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped = true; o.timer != nil {
		o.timer.Stop()
	}
}

// source turns the caller's content into chunks of package proto. If the content fails
// or is too long, the final chunk is missing, and the box discards the rest.
type source struct {
	r    io.Reader
	left int64 // bytes that are still allowed

	mu  sync.Mutex
	err error // why the content has no end
}

// Read only satisfies io.Reader: the engine copies with WriteTo.
func (s *source) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// WriteTo implements io.WriterTo.
func (s *source) WriteTo(w io.Writer) (int64, error) {
	buf, total := make([]byte, proto.ChunkHeader+proto.MaxChunk), int64(0)
	for {
		n, err := s.r.Read(buf[proto.ChunkHeader:])
		if int64(n) > s.left {
			err = ErrTooLarge
		}
		s.left -= int64(n)
		if err != nil && !errors.Is(err, io.EOF) {
			s.fail(err)
			return total, err
		}
		if n > 0 {
			proto.PutHeader(buf, n)
			sent, e := w.Write(buf[:proto.ChunkHeader+n])
			total += int64(sent)
			if e != nil {
				return total, e // the other half says why
			}
		}
		if err != nil {
			proto.PutHeader(buf, 0)
			sent, err := w.Write(buf[:proto.ChunkHeader])
			return total + int64(sent), err
		}
	}
}

func (s *source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// failure returns why the final chunk is missing. Call it after the operation.
func (s *source) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
