// Package sse reads server-sent events (HTML Living Standard, section 9.2).
package sse

import (
	"bufio"
	"bytes"
	"io"
)

// Event is one event. Fields that the stream does not have are empty.
type Event struct {
	ID   string
	Type string // the field "event"
	Data []byte // lines of data, with newlines between them; the caller's own
}

// Reader reads the events of a stream.
type Reader struct{ lines *bufio.Scanner }

// NewReader returns a Reader of r. A line of more than maxLine bytes ends the stream with bufio.ErrTooLong.
func NewReader(r io.Reader, maxLine int) *Reader {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	return &Reader{lines}
}

// Next waits for the next event that has data. io.EOF: the stream has ended. An event without the empty line after
// it is incomplete, and dropped.
func (r *Reader) Next() (Event, error) {
	var e Event
	for r.lines.Scan() {
		line := r.lines.Bytes()
		if len(line) == 0 {
			if len(e.Data) > 0 {
				return e, nil
			}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":")) // a comment has no name
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "id":
			e.ID = string(value)
		case "event":
			e.Type = string(value)
		case "data":
			if len(e.Data) > 0 {
				e.Data = append(e.Data, '\n')
			}
			e.Data = append(e.Data, value...)
		}
	}
	if err := r.lines.Err(); err != nil {
		return Event{}, err
	}
	return Event{}, io.EOF
}
