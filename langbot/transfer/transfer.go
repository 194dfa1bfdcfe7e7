// Package transfer keeps the files that a client of the LangBot door sends in
// chunks, until an action takes them or the connection ends.
//
// It knows neither connections nor what the files are for.
package transfer

import (
	"encoding/json"
	"errors"
	"os"
)

// Set is the files that one connection is sending. It is safe for concurrent use.
type Set struct {
	dir string
	max int64
}

// NewSet returns a set whose files are unlinked temporary files beneath dir (empty:
// [os.TempDir]), of at most max bytes each.
func NewSet(dir string, max int64) *Set { return &Set{dir: dir, max: max} }

// Chunk takes one chunk, the data of a __file_chunk action.
func (s *Set) Chunk(data json.RawMessage) error { return errors.ErrUnsupported }

// Take hands over the file that was sent under key, positioned at its start, and its
// size; key is then free again. The caller closes the file.
func (s *Set) Take(key string) (*os.File, int64, error) { return nil, 0, errors.ErrUnsupported }

// Close deletes the files that nobody took. Later chunks are refused.
func (s *Set) Close() {}
