package protocol

import "strings"

// Trim removes white space from both ends, as defined by the peer's language.
func Trim(s string) string { return strings.TrimFunc(s, isSpace) }

// isSpace reports whether Python's str.isspace is true for a character.
func isSpace(r rune) bool {
	switch {
	case r >= 0x09 && r <= 0x0d, r >= 0x1c && r <= 0x20, r == 0x85, r == 0xa0, r == 0x1680,
		r >= 0x2000 && r <= 0x200a, r == 0x2028, r == 0x2029, r == 0x202f, r == 0x205f, r == 0x3000:
		return true
	}
	return false
}
