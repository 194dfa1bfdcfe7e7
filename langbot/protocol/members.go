package protocol

import (
	"bytes"
	"unicode/utf8"
)

// members iterates over the members of a JSON object, or the elements of an array.
//
//	m := object(data)
//	for m.next() {
//		... m.name, m.value ...
//	}
//	if m.err != nil ...
type members struct {
	b     []byte
	i     int
	named bool
	done  bool

	name  []byte // decoded
	value []byte // verbatim
	err   error  // why next stopped before the end
}

// object returns the members of the object b.
func object(b []byte) members { return nested(b, '{') }

// array returns the elements of the array b.
func array(b []byte) members { return nested(b, '[') }

func nested(b []byte, begin byte) members {
	m := members{b: b, i: skipSpace(b, 0), named: begin == '{'}
	if m.i >= len(b) || b[m.i] != begin {
		m.err = errSyntax
	}
	return m
}

// next advances to the next member, and reports whether there is one.
func (m *members) next() bool {
	if m.err != nil || m.done {
		return false
	}
	first := m.value == nil
	m.i = skipSpace(m.b, m.i)
	if m.i >= len(m.b) {
		return m.fail(errSyntax)
	}
	if end := m.b[m.i]; !first && (end == '}' && m.named || end == ']' && !m.named) {
		return m.end()
	}
	if !first && m.b[m.i] != ',' {
		return m.fail(errSyntax)
	}
	m.i = skipSpace(m.b, m.i+1) // skips the opening bracket or the comma
	if first && m.i < len(m.b) && (m.b[m.i] == '}' && m.named || m.b[m.i] == ']' && !m.named) {
		return m.end()
	}
	if m.named {
		start := m.i
		if m.i, m.err = scanName(m.b, start); m.err != nil {
			return false
		}
		m.name = unquoteName(m.b[start:m.i])
	}
	start := m.i
	if m.i, m.err = scanValue(m.b, start, 1); m.err != nil {
		return false
	}
	m.value = m.b[start:m.i:m.i]
	return true
}

func (m *members) fail(err error) bool {
	m.err = err
	return false
}

// end skips the closing bracket, after which only space may follow.
func (m *members) end() bool {
	if skipSpace(m.b, m.i+1) != len(m.b) {
		return m.fail(errSyntax)
	}
	m.done = true
	return false
}

// unquoteName returns the name at the start of b.
func unquoteName(b []byte) []byte {
	end := bytes.IndexByte(b[1:], '"') + 1
	if bytes.IndexByte(b[:end], '\\') < 0 {
		return b[1:end]
	}
	end, _ = scanString(b, 0)
	s, _ := unquote(b[:end]) // no known name contains half of a surrogate pair
	return []byte(s)
}

// unquote decodes a string that scanString has accepted. ok is false if it contains half of
// a surrogate pair, which is not a character.
func unquote(b []byte) (s string, ok bool) {
	b = b[1 : len(b)-1]
	i := bytes.IndexByte(b, '\\')
	if i < 0 {
		return string(b), true
	}
	ok = true
	out := make([]byte, i, len(b))
	copy(out, b)
	for i < len(b) {
		if b[i] != '\\' {
			n := bytes.IndexByte(b[i:], '\\')
			if n < 0 {
				n = len(b) - i
			}
			out = append(out, b[i:i+n]...)
			i += n
			continue
		}
		var r rune
		if r, i = unescape(b, i+1); r < 0 {
			r, ok = utf8.RuneError, false
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out), ok
}

// unescape decodes the escape sequence after a backslash. It returns -1 for half of a
// surrogate pair.
func unescape(b []byte, i int) (rune, int) {
	switch b[i] {
	case 'b':
		return '\b', i + 1
	case 'f':
		return '\f', i + 1
	case 'n':
		return '\n', i + 1
	case 'r':
		return '\r', i + 1
	case 't':
		return '\t', i + 1
	case 'u':
		r, _ := hex4(b, i+1)
		i += 5
		if r < 0xd800 || r > 0xdfff {
			return r, i
		}
		if r < 0xdc00 && hasPrefix(b, i, `\u`) {
			if low, ok := hex4(b, i+2); ok && low >= 0xdc00 && low <= 0xdfff {
				return (r-0xd800)<<10 | (low - 0xdc00) + 0x10000, i + 6
			}
		}
		return -1, i
	}
	return rune(b[i]), i + 1
}
