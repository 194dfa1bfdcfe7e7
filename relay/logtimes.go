package relay

import (
	"bytes"
	"context"
	"sort"
	"time"
)

// stampLayout is RFC 3339 with a fixed number of digits, so that columns are aligned.
const stampLayout = "2006-01-02T15:04:05.000Z07:00"

// stamper writes the time in front of each line of a stream.
type stamper struct {
	times func() []Mark
	mid   bool // the last byte was not the end of a line
	buf   []byte
}

// stamp returns p, which begins at offset off, with its times. It is valid until the next
// call.
func (s *stamper) stamp(p []byte, off int64) []byte {
	marks := s.times()
	s.buf = s.buf[:0]
	for len(p) > 0 {
		line := p
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			line = p[:i+1]
		}
		if !s.mid {
			s.buf = append(s.buf, timeAt(marks, off)...)
			s.buf = append(s.buf, ' ')
		}
		s.buf = append(s.buf, line...)
		s.mid = line[len(line)-1] != '\n'
		p, off = p[len(line):], off+int64(len(line))
	}
	return s.buf
}

// timeAt returns when the byte at off arrived, or "-" if that is not known.
func timeAt(marks []Mark, off int64) string {
	i := sort.Search(len(marks), func(i int) bool { return marks[i].Offset > off })
	if i == 0 {
		return "-"
	}
	return marks[i-1].Time.UTC().Format(stampLayout)
}

// offsetAt returns the offset of the first byte that arrived at t or later, or end if none
// did. Bytes without a mark count as later.
func offsetAt(marks []Mark, t time.Time, end int64) int64 {
	i := sort.Search(len(marks), func(i int) bool { return !marks[i].Time.Before(t) })
	switch {
	case i < len(marks) && i > 0:
		return marks[i].Offset
	case i == len(marks) && i > 0:
		return end
	}
	return 0
}

// lastLines returns the offset at which the last n lines between first and end start. A
// last line without a line break counts.
func lastLines(ctx context.Context, out Output, first, end, n int64) (int64, error) {
	if n <= 0 {
		return end, nil
	}
	buf := make([]byte, 64<<10)
	for stop := end; stop > first; {
		from := max(stop-int64(len(buf)), first)
		got, at, err := readFull(ctx, out, buf[:stop-from], from)
		if err != nil {
			return 0, err
		}
		for i := len(got) - 1; i >= 0; i-- {
			if off := at + int64(i); got[i] == '\n' && off < end-1 {
				if n--; n <= 0 {
					return off + 1, nil
				}
			}
		}
		if at > from {
			return at, nil // everything before was overwritten meanwhile
		}
		stop = from
	}
	return first, nil
}

// readFull reads len(p) bytes from off on, or fewer if the first of them are gone.
func readFull(ctx context.Context, out Output, p []byte, off int64) (got []byte, at int64, err error) {
	n := 0
	for n < len(p) {
		m, at, err := out.ReadAt(ctx, p[n:], off+int64(n))
		if m <= 0 && err != nil {
			return nil, 0, err
		}
		if gone := at - off - int64(n); gone > 0 {
			// Start over after the lost bytes.
			left := max(int64(len(p))-int64(n)-gone, 0)
			m = int(min(int64(m), left))
			copy(p, p[n:n+m])
			p, off, n = p[:left], at, 0
		}
		n += m
	}
	return p, off, nil
}
