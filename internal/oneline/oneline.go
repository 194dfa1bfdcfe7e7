// Package oneline makes one line of a message, for logs and tables with one line an entry.
package oneline

import "strings"

// Error is the message of err. Joined errors, which have a line each, get "; " between them.
func Error(err error) string { return Text(err.Error()) }

// Text is s without line breaks.
func Text(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }

// Fold is s with one space for each run of white space, for text that flows on.
func Fold(s string) string { return strings.Join(strings.Fields(s), " ") }
