package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// verifier follows the chain.
type verifier struct {
	known   Head
	number  int // of the file being read
	oldest  int // number of the oldest existing file
	kept    int // lowest number that is kept, by the last anchor
	started bool
	report  Report

	file     string
	line     int
	anchored bool // the file's anchor was seen
	junk     junk
}

// junk is bytes that are no line, and that a line of kind "torn" must explain.
type junk struct {
	line  int // where it starts
	bytes int64
	data  []byte // at most maxJunk
	why   error  // what is wrong with its first line
}

// maxJunk bounds the junk that is kept in memory. Open records all junk after the last
// line, which is at most a few lines.
const maxJunk = 64 * MaxLine

func (v *verifier) broken(line int, format string, args ...any) error {
	return &BrokenError{File: v.file, Line: line, What: fmt.Sprintf(format, args...)}
}

// readFile checks one file.
func (v *verifier) readFile(r io.Reader) error {
	v.anchored, v.junk = false, junk{}
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := readLine(in)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("reading %q: %w", v.file, err)
		}
		if len(line) > 0 {
			v.line++
			if err := v.checkLine(line); err != nil {
				return err
			}
		}
		if err != nil {
			return v.endFile()
		}
	}
}

// readLine reads up to a newline, or a part of the line that is too long to be valid.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for len(line) <= MaxLine {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
	return line, nil
}

// checkLine checks one line with its newline.
func (v *verifier) checkLine(line []byte) error {
	body, terminated := bytes.CutSuffix(line, []byte("\n"))
	r, hash, err := decode(body)
	if err != nil || !terminated {
		return v.keepJunk(line, err)
	}
	if v.junk.bytes > 0 {
		if err := v.explainJunk(r); err != nil {
			return err
		}
	} else if r.Kind == kindTorn {
		return v.broken(v.line, "says that a partial line precedes it, and there is none")
	}
	if err := v.checkPlace(r); err != nil {
		return err
	}
	if err := v.checkAnchor(r); err != nil {
		return err
	}
	if v.known.Seq == r.Seq && v.known.Hash != hash {
		return v.broken(v.line, "entry %d is not the one that is known: the log was written anew", r.Seq)
	}
	v.report.Head = Head{Seq: r.Seq, Hash: hash}
	if r.Kind == "" {
		v.report.Entries++
	}
	return nil
}

func (v *verifier) keepJunk(line []byte, why error) error {
	if v.junk.bytes == 0 {
		v.junk = junk{line: v.line, why: why}
	}
	v.junk.bytes += int64(len(line))
	v.junk.data = append(v.junk.data, line...)
	if len(v.junk.data) > maxJunk {
		return v.junkError()
	}
	return nil
}

// explainJunk accepts the junk before r if r describes exactly that. A newline may have
// been added to end it.
func (v *verifier) explainJunk(r record) error {
	data := v.junk.data
	if r.Kind == kindTorn && r.Torn != nil {
		if r.Torn.Bytes == v.junk.bytes-1 {
			data = bytes.TrimSuffix(data, []byte("\n"))
		}
		if sum := sha256.Sum256(data); int64(len(data)) == r.Torn.Bytes && hex.EncodeToString(sum[:]) == r.Torn.SHA256 {
			v.report.Torn = append(v.report.Torn, Torn{File: v.file, Line: v.junk.line, Bytes: r.Torn.Bytes})
			v.junk = junk{}
			return nil
		}
	}
	return v.junkError()
}

func (v *verifier) junkError() error {
	if v.junk.why == nil {
		return v.broken(v.junk.line, "ends without a newline")
	}
	return v.broken(v.junk.line, "%v", v.junk.why)
}

// checkPlace checks that r follows the line before.
func (v *verifier) checkPlace(r record) error {
	if !v.started {
		v.started = true
		v.report.First = r.Seq
		if v.number > 1 {
			return nil // older files were deleted: checkAnchor
		}
	}
	want := v.report.Head.Seq + 1
	switch {
	case r.Seq > want:
		return v.broken(v.line, "entry %d follows %d: entries between were deleted, or this one was moved", r.Seq, want-1)
	case r.Seq < want:
		return v.broken(v.line, "entry %d follows %d: it was inserted or moved here", r.Seq, want-1)
	case r.Prev != v.report.Head.Hash:
		return v.broken(v.line, "does not follow the line before: that or this one was replaced")
	}
	return nil
}

// checkAnchor checks that an anchor, and nothing else, starts the file, and that no file is
// missing that was kept by then.
func (v *verifier) checkAnchor(r record) error {
	if r.Kind != kindAnchor {
		if !v.anchored && r.Kind != kindTorn {
			return v.broken(v.line, "the file does not start with its anchor: its start was cut off")
		}
		if r.Kind != "" && r.Kind != kindTorn {
			return v.broken(v.line, "its kind %q is unknown", r.Kind)
		}
		return nil
	}
	switch {
	case v.anchored || r.Anchor == nil:
		return v.broken(v.line, "an anchor that is not at the start of a file")
	case r.Anchor.File != v.number:
		return v.broken(v.line, "is the start of file %d, not of file %d", r.Anchor.File, v.number)
	}
	v.anchored, v.kept = true, r.Anchor.Oldest
	return nil
}

// endFile judges what follows the last line of a file.
func (v *verifier) endFile() error {
	if bytes.IndexByte(v.junk.data, '\n') >= 0 {
		return v.junkError()
	}
	v.report.Unfinished = v.junk.bytes
	return nil
}

// finish judges the log as a whole.
func (v *verifier) finish(path string) error {
	broken := func(format string, args ...any) error {
		return &BrokenError{File: path, What: fmt.Sprintf(format, args...)}
	}
	switch {
	case !v.started:
		return broken("holds no line, and a new log has one: all was deleted")
	case v.kept < v.oldest:
		return broken("file %q is missing: the last anchor says that it is kept", rotated(path, v.kept))
	case v.known == Head{}:
		return nil
	case v.known.Seq > v.report.Head.Seq:
		return broken("ends with entry %d, but entry %d is known: the end was cut off", v.report.Head.Seq, v.known.Seq)
	case v.known.Seq < v.report.First:
		return broken("starts with entry %d, so entry %d, which is known, cannot be compared", v.report.First, v.known.Seq)
	}
	return nil
}
