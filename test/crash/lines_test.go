package crash

import (
	"bytes"
	"fmt"
	"strconv"
)

// lines checks a stream of the numbers 0, 1, 2 …, one on each line: whatever is
// lost, repeated or out of order breaks the sequence.
type lines struct {
	next    int64
	partial []byte
	bytes   int64
	crlf    bool // a terminal's lines end with \r\n
}

func (l *lines) add(b []byte) error {
	l.bytes += int64(len(b))
	l.partial = append(l.partial, b...)
	for {
		end := bytes.IndexByte(l.partial, '\n')
		if end < 0 {
			if len(l.partial) > 64 {
				return fmt.Errorf("after %d lines: no end of line in %q", l.next, l.partial)
			}
			return nil
		}
		line := l.partial[:end]
		if l.crlf {
			line = bytes.TrimSuffix(line, []byte("\r"))
		}
		n, err := strconv.ParseInt(string(line), 10, 64)
		if err != nil || n != l.next {
			return fmt.Errorf("line %d is %q, must be %d", l.next, line, l.next)
		}
		l.next++
		l.partial = l.partial[end+1:]
	}
}
