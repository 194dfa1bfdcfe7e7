// Package oneline turns a message into a single line, for logs and tables with one line per
// entry.
package oneline

import "strings"

// Error is the message of err. The messages of joined errors, one per line, are separated by
// "; " instead.
func Error(err error) string { return Text(err.Error()) }

// Text is s with "; " for each line break.
func Text(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }

// Fold is s with each run of white space replaced by one space, for running text.
func Fold(s string) string { return strings.Join(strings.Fields(s), " ") }
