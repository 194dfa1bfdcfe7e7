// Package oneline turns a message into a single line, for logs, tables with one line per entry, and
// terminals.
package oneline

import "strings"

// Error is the message of err. The messages of joined errors, one per line, are separated by
// "; " instead.
func Error(err error) string { return Text(err.Error()) }

// Text is s with "; " for each line break.
func Text(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }

// Printable is s with a question mark for each control character, so that a terminal obeys nothing
// that others have written.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// Fold is s with each run of white space replaced by one space, for running text.
func Fold(s string) string { return strings.Join(strings.Fields(s), " ") }
