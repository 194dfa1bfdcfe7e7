package history

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// journal is the file to which entries are appended, and the earlier ones that are still needed.
// Store.writing guards it.
type journal struct {
	dir  string
	file *os.File // nil after an error that left an incomplete frame in it
	size int64
	last uint64 // highest number in file
	old  []segment

	closed bool // nothing is written any more
}

// segment is a file of a journal that is written no more.
type segment struct {
	path string
	last uint64 // highest number in it
}

const segmentPrefix = "journal-"

// begin continues the journal in a new file, whose numbers begin at next.
func (j *journal) begin(next uint64) error {
	f, err := os.OpenFile(filepath.Join(j.dir, fmt.Sprintf("%s%020d", segmentPrefix, next)), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if j.file != nil {
		j.retire()
	}
	j.file, j.size, j.last = f, 0, next-1
	return nil
}

// retire closes the file, whose entries are still needed. A file without entries is not kept: the
// next begin has its name.
func (j *journal) retire() {
	if j.size > 0 {
		j.old = append(j.old, segment{j.file.Name(), j.last})
	}
	j.file.Close() // everything was written, or Append has reported that it was not
	j.file = nil
}

// append writes one frame. If that fails it takes back what was written, so that the next frame
// can be read.
func (j *journal) append(seq uint64, f []byte) error {
	if j.closed {
		return ErrClosed
	}
	if j.file == nil {
		if err := j.begin(seq); err != nil {
			return err
		}
	}
	if _, err := j.file.Write(f); err != nil {
		if terr := j.file.Truncate(j.size); terr != nil {
			j.retire()
		}
		return err
	}
	j.size, j.last = j.size+int64(len(f)), seq
	return nil
}

// drop returns the files whose entries are all stored, up to the number applied. The caller removes
// them, or the next opening does.
func (j *journal) drop(applied uint64) (paths []string) {
	j.old = slices.DeleteFunc(j.old, func(s segment) bool {
		if s.last > applied {
			return false
		}
		paths = append(paths, s.path)
		return true
	})
	return paths
}

// segments returns the files of the journal in dir, oldest first.
func segments(dir string) (paths []string, err error) {
	list, err := os.ReadDir(dir) // sorted by name
	for _, e := range list {
		number, ours := strings.CutPrefix(e.Name(), segmentPrefix)
		if _, nerr := strconv.ParseUint(number, 10, 64); ours && nerr == nil && e.Type().IsRegular() {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, err
}

// readFrames calls fn for every entry of a journal file, up to the first invalid frame. It fails only
// if r or fn does.
func readFrames(r io.Reader, fn func(e Entry, body []byte) error) error {
	b := bufio.NewReaderSize(r, 64<<10)
	for {
		head := make([]byte, frameHead)
		if _, err := io.ReadFull(b, head); err != nil {
			return end(err)
		}
		n := binary.BigEndian.Uint32(head)
		if n > maxBody {
			return nil
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(b, body); err != nil {
			return end(err)
		}
		sum := crc32.Update(crc32.ChecksumIEEE(head[8:]), crc32.IEEETable, body)
		e, err := decode(binary.BigEndian.Uint64(head[8:]), body)
		if sum != binary.BigEndian.Uint32(head[4:]) || err != nil {
			return nil
		}
		if err := fn(e, body); err != nil {
			return err
		}
	}
}

// end is nil if err only says that the file has ended.
func end(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
