package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// resume finds the end of the chain in the current file, f.
func (l *Log) resume(f *os.File) error {
	list, err := numbers(l.path)
	if err != nil {
		return err
	}
	end, err := lastLine(f)
	if err != nil {
		return err
	}
	switch {
	case end.found:
		l.head = end.head
		l.oldest = firstAnchor(f).Oldest
	case len(list) > 0: // a crash interrupted a rotation
		if l.head, l.oldest, err = endOf(rotated(l.path, list[len(list)-1])); err != nil {
			return err
		}
	}
	if l.number = 1; len(list) > 0 {
		l.number = list[len(list)-1] + 1
	}
	l.size, l.oldest = end.size, max(1, l.oldest)
	if end.open { // only the newline is missing, so the line counts
		if err := l.writeLocked([]byte("\n"), l.head); err != nil {
			return err
		}
		end.size, end.lineEnd = l.size, l.size
	}
	if err := l.recordTorn(f, end); err != nil {
		return err
	}
	if !end.found {
		return l.anchorLocked()
	}
	return nil
}

// recordTorn records what follows the last line of f, if anything does.
func (l *Log) recordTorn(f *os.File, end tail) error {
	if end.size == end.lineEnd {
		return nil
	}
	if end.size-end.lineEnd > maxJunk {
		return fmt.Errorf("%d bytes at its end are no lines of an audit log: move it and all older ones away", end.size-end.lineEnd)
	}
	junk := make([]byte, end.size-end.lineEnd)
	if _, err := f.ReadAt(junk, end.lineEnd); err != nil {
		return err
	}
	var newline []byte
	if junk[len(junk)-1] != '\n' {
		newline = []byte("\n")
	}
	return l.writeRecordLocked(newline, record{Kind: kindTorn, Torn: &torn{Bytes: int64(len(junk)), SHA256: digest(junk)}})
}

// endOf returns the last line of the full file at path, and the oldest number that its
// anchor keeps.
func endOf(path string) (Head, int, error) {
	f, err := os.Open(path)
	if err != nil {
		return Head{}, 0, err
	}
	defer f.Close()
	end, err := lastLine(f)
	if err != nil {
		return Head{}, 0, err
	}
	if !end.found {
		return Head{}, 0, fmt.Errorf("%q holds no line of an audit log: move it and all older ones away", path)
	}
	return end.head, firstAnchor(f).Oldest, nil
}

// firstAnchor returns the anchor of f, which is its first line or follows what a crash
// left; zero if there is none.
func firstAnchor(f *os.File) anchor {
	in := bufio.NewReader(io.NewSectionReader(f, 0, 4*MaxLine))
	for {
		line, err := readLine(in)
		if r, _, bad := decode(bytes.TrimSuffix(line, []byte("\n"))); bad == nil && r.Anchor != nil {
			return *r.Anchor
		}
		if err != nil {
			return anchor{}
		}
	}
}

// tail is the end of a file.
type tail struct {
	found   bool // there is a line whose hash matches
	head    Head // that line
	lineEnd int64
	open    bool  // it has no newline
	size    int64 // of the file; lineEnd and later bytes hold no line
}

// lastLine finds the last line of f whose hash matches. It reads as little as possible.
func lastLine(f *os.File) (tail, error) {
	st, err := f.Stat()
	if err != nil {
		return tail{}, err
	}
	t := tail{size: st.Size()}
	for window := int64(MaxLine); ; window *= 4 {
		start := max(0, t.size-window)
		b := make([]byte, t.size-start)
		if _, err := f.ReadAt(b, start); err != nil && !errors.Is(err, io.EOF) {
			return tail{}, err
		}
		if head, end, ok := lastIn(b, start == 0); ok {
			t.found, t.head, t.lineEnd = true, head, start+int64(end)
			t.open = b[end-1] != '\n'
			return t, nil
		}
		if start == 0 {
			return t, nil
		}
	}
}

// lastIn returns the last line in b whose hash matches, and the position after it and its
// newline, if it has one. Unless whole, the bytes before the first newline are only a part
// of a line.
func lastIn(b []byte, whole bool) (head Head, end int, ok bool) {
	for end = len(b); end > 0; {
		start := bytes.LastIndexByte(b[:end-1], '\n') + 1
		if start == 0 && !whole {
			return Head{}, 0, false
		}
		if r, hash, err := decode(bytes.TrimSuffix(b[start:end], []byte("\n"))); err == nil {
			return Head{Seq: r.Seq, Hash: hash}, end, true
		}
		end = start
	}
	return Head{}, 0, false
}
