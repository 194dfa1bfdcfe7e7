package langbot

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/boxd/boxd/langbot/protocol"
)

// clipAt is how many bytes of each output stream of a command are kept.
const clipAt = 1 << 20

// clip is a writer that keeps the beginning and counts the rest.
type clip struct {
	mu   sync.Mutex
	kept []byte
	lost int64
}

// Write keeps what fits and accepts everything.
func (c *clip) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keep := p[:min(len(p), clipAt-len(c.kept))]
	c.kept = append(c.kept, keep...)
	c.lost += int64(len(p) - len(keep))
	return len(p), nil
}

// text is the output for the client: decoded, without white space at its ends, and with a note
// if some of it was discarded.
func (c *clip) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := protocol.Trim(decode(c.kept))
	if c.lost > 0 {
		s += fmt.Sprintf("\n... [raw output clipped at %d bytes, %d bytes discarded]", clipAt, c.lost)
	}
	return s
}

// decode reads b as UTF-8. Like Python's errors="replace", it replaces each maximal subpart of an
// ill-formed sequence by one U+FFFD (Unicode 15, 3.9, "substitution of maximal subparts"). Go
// replaces each byte, or each run.
func decode(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	out.Grow(len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n <= 1 {
			out.WriteString("\uFFFD")
			b = b[illFormed(b):]
			continue
		}
		out.Write(b[:n])
		b = b[n:]
	}
	return out.String()
}

// illFormed returns the length of the maximal subpart of the ill-formed sequence at the start of
// b, at least 1: the longest part that more bytes could complete.
func illFormed(b []byte) int {
	n := 1
	for n < min(len(b), utf8.UTFMax-1) && !utf8.FullRune(b[:n+1]) {
		n++
	}
	return n
}
