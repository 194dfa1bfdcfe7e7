package files

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/boxd/boxd/agent/files/proto"
)

// maxListing in bytes is what the names and links of a directory may take together.
const maxListing = 16 << 20

// bounded passes on at most left bytes; more is an error, with which the engine
// stops to read.
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

// source turns a caller's content into the chunks of package proto. Content that
// fails or is too long gets no end, so that the box drops it.
type source struct {
	r    io.Reader
	left int64 // how many bytes may still come

	mu  sync.Mutex
	err error // why the content has no end
}

// Read is there for the type: the engine copies with WriteTo.
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

// failure is why the content had no end, once the operation is over.
func (s *source) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
