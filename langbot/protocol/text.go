package protocol

import (
	"strings"
	"unicode"
)

// Trim removes white space from both ends, as defined by the peer's language.
func Trim(s string) string { return strings.TrimFunc(s, IsSpace) }

// IsSpace is Python's str.isspace, on which str.strip is based: unicode.IsSpace and ASCII's four
// separators.
func IsSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
