// Package transfer keeps the files that a client of the LangBot door sends in
// chunks, until an action takes them or the connection ends.
//
// It knows neither connections nor what the files are for.
package transfer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/langbot/protocol"
)

// Bounds of a Set, besides the size of a file.
const (
	MaxOpen  = 128      // files at once
	MaxChunk = 16 << 10 // bytes
	// MaxFull is how many files of the greatest size there can be at once: what a set
	// takes of the disk, whatever the number of its files.
	MaxFull = 8
)

// Pool bounds what the sets of all connections keep together. It is safe for concurrent
// use.
type Pool struct {
	most int64
	used atomic.Int64
}

// NewPool returns a pool of so many bytes.
func NewPool(bytes int64) *Pool { return &Pool{most: bytes} }

func (p *Pool) take(n int64) bool {
	if p == nil || p.used.Add(n) <= p.most {
		return true
	}
	p.used.Add(-n)
	return false
}

func (p *Pool) give(n int64) {
	if p != nil {
		p.used.Add(-n)
	}
}

// Set is the files that one connection is sending. It is safe for concurrent use.
type Set struct {
	dir  string
	max  int64
	pool *Pool // may be nil

	mu     sync.Mutex
	files  map[string]*file
	total  int64
	closed bool
}

// file has no name: it is gone with its descriptor, whatever becomes of this process.
type file struct {
	f    *os.File
	size int64
}

// NewSet returns a set whose files are unlinked temporary files beneath dir (empty:
// [os.TempDir]), of at most max bytes each, and together with other sets of what is in
// pool, if that is not nil.
func NewSet(dir string, max int64, pool *Pool) *Set {
	return &Set{dir: dir, max: max, pool: pool, files: make(map[string]*file)}
}

// Chunk takes one chunk, the data of a __file_chunk action. A file of which a chunk was
// refused is gone.
func (s *Set) Chunk(data json.RawMessage) error {
	c, err := parseChunk(data)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return refuse("the connection is closed")
	}
	f, err := s.file(c)
	if err != nil {
		return err
	}
	if err := s.append(f, c.bytes); err != nil {
		s.drop(c.key)
		return err
	}
	return nil
}

// file returns the file that a chunk belongs to. The first chunk makes it, or begins it
// anew.
func (s *Set) file(c chunk) (*file, error) {
	f := s.files[c.key]
	switch {
	case c.index > 0 && f == nil:
		return nil, refuse("file_key %q: chunk %d came without chunk 0: send the file from its beginning", c.key, c.index)
	case c.index > 0:
		return f, nil
	case f != nil:
		s.drop(c.key)
	case len(s.files) >= MaxOpen:
		return nil, refuse("file_key %q: %d files are being sent on this connection, the most that can be: finish one first", c.key, MaxOpen)
	}
	temp, err := unlinked(s.dir)
	if err != nil {
		return nil, fmt.Errorf("keeping what is sent: %w", err)
	}
	f = &file{f: temp}
	s.files[c.key] = f
	return f, nil
}

func (s *Set) append(f *file, p []byte) error {
	n := int64(len(p))
	if f.size+n > s.max {
		return refuse("the file exceeds %d bytes, the most that can be sent", s.max)
	}
	if s.total+n > s.max*MaxFull {
		return refuse("the files that are being sent exceed %d bytes: finish one first", s.max*MaxFull)
	}
	if !s.pool.take(n) {
		return refuse("the files that are being sent on all connections exceed %d bytes: try again later", s.pool.most)
	}
	if _, err := f.f.WriteAt(p, f.size); err != nil {
		s.pool.give(n)
		if diskroom.IsFull(err) {
			return refuse("the server has no space left for the files that it is sent: try again later")
		}
		return fmt.Errorf("keeping what is sent: %w", err)
	}
	f.size += n
	s.total += n
	return nil
}

// Take hands over the file that was sent under key, positioned at its start, and its
// size; key is then free again. The caller closes the file.
func (s *Set) Take(key string) (*os.File, int64, error) {
	if err := checkKey(key); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[key]
	if f == nil {
		return nil, 0, refuse("file_key %q: no such file was sent on this connection", key)
	}
	s.forget(key, f)
	if _, err := f.f.Seek(0, io.SeekStart); err != nil {
		f.f.Close()
		return nil, 0, fmt.Errorf("reading what was sent: %w", err)
	}
	return f.f, f.size, nil
}

// Close deletes the files that nobody took. Later chunks are refused. Closing twice is
// no error.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for key := range s.files {
		s.drop(key)
	}
}

// drop deletes a file. The caller holds s.mu.
func (s *Set) drop(key string) {
	f := s.files[key]
	s.forget(key, f)
	f.f.Close() // nothing that was written is wanted any more
}

func (s *Set) forget(key string, f *file) {
	delete(s.files, key)
	s.total -= f.size
	s.pool.give(f.size)
}

// unlinked makes a file without a name; where the file system needs one (open(2),
// O_TMPFILE), it has one for a moment.
func unlinked(dir string) (*os.File, error) {
	f, err := os.OpenFile(cmp.Or(dir, os.TempDir()), unix.O_TMPFILE|unix.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		return f, nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return nil, err
	}
	if f, err = os.CreateTemp(dir, "boxd-transfer-*"); err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func refuse(format string, a ...any) error {
	return protocol.Errorf(protocol.ValueError, format, a...)
}
