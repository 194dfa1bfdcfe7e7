// Package transfer keeps the files that a client of the LangBot door uploads in chunks, until an
// action takes them or the connection ends.
//
// It knows neither the connections nor the purpose of the files.
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
	// MaxFull bounds the disk space of a set, in files of the largest size.
	MaxFull = 8
)

// Pool bounds the total size of the sets of all connections. It is safe for concurrent use.
type Pool struct {
	most int64
	used atomic.Int64
}

// NewPool returns a pool of the given size.
func NewPool(bytes int64) *Pool { return &Pool{most: bytes} }

// Set holds the files that one connection is uploading. It is safe for concurrent use.
type Set struct {
	dir  string
	max  int64
	pool *Pool

	mu     sync.Mutex
	files  map[string]*file
	total  int64
	closed bool
}

// file has no name, so the kernel deletes it with its last descriptor, even if this process dies.
type file struct {
	f    *os.File
	size int64
}

// NewSet returns a set whose files are unlinked temporary files in dir (empty: [os.TempDir]) of at
// most max bytes each. pool bounds it together with other sets.
func NewSet(dir string, max int64, pool *Pool) *Set {
	return &Set{dir: dir, max: max, pool: pool, files: make(map[string]*file)}
}

// Chunk stores one chunk, the data of a __file_chunk action. A file of which a chunk was refused
// is deleted.
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

// file returns the file that a chunk belongs to. The first chunk creates it, or starts it over.
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
		return nil, fmt.Errorf("storing an upload: %w", err)
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
	if s.pool.used.Add(n) > s.pool.most {
		s.pool.used.Add(-n)
		return refuse("the files that are being sent on all connections exceed %d bytes: try again later", s.pool.most)
	}
	if _, err := f.f.WriteAt(p, f.size); err != nil {
		s.pool.used.Add(-n)
		if diskroom.IsFull(err) {
			return refuse("the server has no space left for uploads: try again later")
		}
		return fmt.Errorf("storing an upload: %w", err)
	}
	f.size += n
	s.total += n
	return nil
}

// Take returns the file that was uploaded under key, positioned at its start, and its size. The
// caller owns the file; key is free again.
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
		return nil, 0, fmt.Errorf("reading an upload: %w", err)
	}
	return f.f, f.size, nil
}

// Close deletes the files that were not taken. Later chunks are refused. Closing twice is fine.
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
	f.f.Close() // an error does not matter: the content is discarded
}

func (s *Set) forget(key string, f *file) {
	delete(s.files, key)
	s.total -= f.size
	s.pool.used.Add(-f.size)
}

// unlinked creates a file without a name. Where the file system does not support that (open(2),
// O_TMPFILE), the file has a name for a moment.
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
