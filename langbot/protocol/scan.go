package protocol

import "errors"

// This package parses JSON by hand, for three reasons. The peer writes NaN and Infinity for
// numbers that are not finite, and has to get an error instead of no answer. Names must be
// compared exactly, which encoding/json does not do. And commands are so fast that decoding
// by reflection would be noticeable.

// maxDepth is the maximum nesting depth of objects and arrays.
const maxDepth = 512

var (
	errSyntax = errors.New("malformed JSON")
	errDepth  = errors.New("nested too deep")
)

// skipSpace returns the index of the first byte from i on that is not white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// scanValue returns the end of the value that begins at b[i].
func scanValue(b []byte, i, depth int) (int, error) {
	if i >= len(b) {
		return i, errSyntax
	}
	switch c := b[i]; {
	case c == '"':
		return scanString(b, i)
	case c == '{' || c == '[':
		return scanNested(b, i, depth)
	case c == '-' || c >= '0' && c <= '9':
		return scanNumber(b, i)
	}
	for _, word := range [...]string{"null", "true", "false", "NaN", "Infinity"} {
		if hasPrefix(b, i, word) {
			return i + len(word), nil
		}
	}
	return i, errSyntax
}

func hasPrefix(b []byte, i int, s string) bool {
	return len(b)-i >= len(s) && string(b[i:i+len(s)]) == s
}

// scanString returns the end of the string whose quotation mark is b[i].
func scanString(b []byte, i int) (int, error) {
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1, nil
		case c < 0x20:
			return i, errSyntax
		case c == '\\':
			i++
			if i >= len(b) {
				return i, errSyntax
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if _, ok := hex4(b, i+1); !ok {
					return i, errSyntax
				}
				i += 4
			default:
				return i, errSyntax
			}
		}
	}
	return i, errSyntax
}

// hex4 parses four hexadecimal digits.
func hex4(b []byte, i int) (rune, bool) {
	if len(b)-i < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// scanNumber returns the end of the number that begins at b[i].
func scanNumber(b []byte, i int) (int, error) {
	if b[i] == '-' {
		i++
		if hasPrefix(b, i, "Infinity") {
			return i + len("Infinity"), nil
		}
	}
	start := i
	i = digits(b, i)
	if i == start || b[start] == '0' && i > start+1 {
		return i, errSyntax
	}
	if i < len(b) && b[i] == '.' {
		start = i + 1
		if i = digits(b, start); i == start {
			return i, errSyntax
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		start = i
		if i = digits(b, start); i == start {
			return i, errSyntax
		}
	}
	return i, nil
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}

// scanNested returns the end of the object or array that begins at b[i].
func scanNested(b []byte, i, depth int) (int, error) {
	if depth >= maxDepth {
		return i, errDepth
	}
	object, end := b[i] == '{', b[i]+2 // the codes of "}" and "]" are those of "{" and "[" plus 2
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == end {
		return i + 1, nil
	}
	for {
		var err error
		if object {
			if i, err = scanName(b, i); err != nil {
				return i, err
			}
		}
		if i, err = scanValue(b, i, depth+1); err != nil {
			return i, err
		}
		if i = skipSpace(b, i); i >= len(b) {
			return i, errSyntax
		}
		switch b[i] {
		case end:
			return i + 1, nil
		case ',':
			i = skipSpace(b, i+1)
		default:
			return i, errSyntax
		}
	}
}

// scanName returns the start of the value whose name begins at b[i].
func scanName(b []byte, i int) (int, error) {
	if i >= len(b) || b[i] != '"' {
		return i, errSyntax
	}
	i, err := scanString(b, i)
	if err != nil {
		return i, err
	}
	if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
		return i, errSyntax
	}
	return skipSpace(b, i+1), nil
}
