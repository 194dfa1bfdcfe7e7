package langbot

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/boxd/boxd/internal/headtail"
)

// clipAt is how many bytes of each stream of a command are kept, as in the reference server, which
// keeps the first ones only.
const clipAt = 1 << 20

// outputText is what a client is told of a stream: decoded, without white space at its ends, and
// with a note where bytes are missing.
func outputText(b *headtail.Buffer) string {
	kept, missing := b.Bytes()
	if missing == nil {
		return strings.TrimFunc(decode(kept), isSpace)
	}
	note := fmt.Sprintf("\n... [raw output clipped at %d bytes, %d bytes discarded]", clipAt, missing.Bytes)
	return strings.TrimFunc(decode(kept[:missing.Offset])+note+"\n"+decode(kept[missing.Offset:]), isSpace)
}

// decode reads b as UTF-8. Like Python's errors="replace" it puts one U+FFFD in the place
// of each maximal part that begins a character and does not end it (Unicode 15, 3.9,
// "substitution of maximal subparts"); Go's own ways put one for each byte, or for a run.
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
			b = b[begun(b):]
			continue
		}
		out.Write(b[:n])
		b = b[n:]
	}
	return out.String()
}

// begun is the length of the beginning of a character at the start of b, which is none as
// a whole; at least 1. The bounds of the second byte are those of table 3-7.
func begun(b []byte) int {
	low, high, more := byte(0x80), byte(0xbf), 0
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		more = 1
	case c == 0xe0:
		low, more = 0xa0, 2
	case c == 0xed:
		high, more = 0x9f, 2
	case c >= 0xe1 && c <= 0xef:
		more = 2
	case c == 0xf0:
		low, more = 0x90, 3
	case c == 0xf4:
		high, more = 0x8f, 3
	case c >= 0xf1 && c <= 0xf3:
		more = 3
	}
	n := 1
	for ; n <= more && n < len(b) && b[n] >= low && b[n] <= high; n++ {
		low, high = 0x80, 0xbf
	}
	return n
}

// isSpace is what Python's str.isspace says, which str.strip goes by: unicode.IsSpace
// and the four separators of ASCII.
func isSpace(r rune) bool {
	switch {
	case r >= 0x09 && r <= 0x0d, r >= 0x1c && r <= 0x20, r == 0x85, r == 0xa0, r == 0x1680,
		r >= 0x2000 && r <= 0x200a, r == 0x2028, r == 0x2029, r == 0x202f, r == 0x205f, r == 0x3000:
		return true
	}
	return false
}
