// Package headtail keeps the beginning and the end of a stream that is too long to keep whole.
package headtail

import (
	"io"
	"sync"
	"unicode/utf8"
)

// Missing is the gap in what was kept of a stream.
type Missing struct {
	Offset int64 // bytes of the stream before it, which are kept
	Bytes  int64 // its length
}

// Buffer is a writer that keeps up to Limit bytes. Of a longer stream it keeps the first 60 % of
// Limit, where a program says what it does, and the last 40 %, where it says how it failed. It is safe
// for concurrent use.
type Buffer struct {
	Limit int64 // must not change; below 1: nothing is kept

	mu      sync.Mutex
	kept    []byte // the whole stream, or once that is over Limit its head and behind it the tail, as a ring
	next    int    // where in kept the tail's next byte goes; the oldest one is there
	skipped int64
}

var _ io.Writer = (*Buffer)(nil)

// head is how many bytes of a cut stream are from its beginning.
func (b *Buffer) head() int { return int(max(0, b.Limit) * 6 / 10) }

// Write keeps what fits and never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(p)
	fits := min(n, int(max(0, b.Limit))-len(b.kept))
	b.kept = append(b.kept, p[:fits]...)
	p = p[fits:]
	if len(p) == 0 {
		return n, nil
	}
	b.skipped += int64(len(p))
	ring := b.kept[b.head():]
	if over := len(p) - len(ring); over > 0 {
		b.next = (b.next + over) % max(1, len(ring))
		p = p[over:]
	}
	copied := copy(ring[b.next:], p)
	copy(ring, p[copied:])
	b.next = (b.next + len(p)) % max(1, len(ring))
	return n, nil
}

// Bytes returns what was kept and the gap in it, nil if there is none. The caller owns the bytes. A
// character of UTF-8 that the gap would split is missing as a whole, if the kept part is UTF-8
// otherwise.
func (b *Buffer) Bytes() ([]byte, *Missing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.skipped == 0 {
		return append([]byte(nil), b.kept...), nil
	}
	at := b.head()
	head, ring := b.kept[:at], b.kept[at:]
	tail := append(append([]byte(nil), ring[b.next:]...), ring[:b.next]...)
	cut, begin := wholeEnd(head), wholeStart(tail)
	if utf8.Valid(head[:cut]) && utf8.Valid(tail[begin:]) {
		head, tail = head[:cut], tail[begin:]
	}
	gap := b.skipped + int64(len(b.kept)-len(head)-len(tail))
	return append(append(make([]byte, 0, len(head)+len(tail)), head...), tail...), &Missing{Offset: int64(len(head)), Bytes: gap}
}

// wholeEnd is the length of p without the beginning of a character at its end.
func wholeEnd(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if last := p[len(p)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return len(p) - n
			}
			break
		}
	}
	return len(p)
}

// wholeStart is the length of the end of a character at the start of p.
func wholeStart(p []byte) int {
	n := 0
	for n < len(p) && n < utf8.UTFMax-1 && !utf8.RuneStart(p[n]) {
		n++
	}
	return n
}
