package spec

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrInvalid: a value breaks a rule. Every [FieldError] matches it.
var ErrInvalid = errors.New("invalid")

// FieldError reports a value that breaks a rule. Its text is one line with the field, the
// value and the rule. It matches ErrInvalid.
type FieldError struct {
	Field string // such as "memory" or "mounts[1].target"
	Value string // quoted or formatted for people; may be shortened
	Rule  string // a valid value, or what to do
	Err   error  `json:"-"` // the cause, if a failed operation showed that the rule is broken
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s %s: %s", e.Field, e.Value, e.Rule)
}

// Is makes every FieldError match ErrInvalid.
func (e *FieldError) Is(target error) bool { return target == ErrInvalid }

func (e *FieldError) Unwrap() error { return e.Err }

// Because adds the cause to e, and returns e.
func (e *FieldError) Because(err error) *FieldError {
	e.Err = err
	return e
}

// refuse builds a FieldError with value as it is.
func refuse(field, value, rule string, args ...any) *FieldError {
	return &FieldError{Field: field, Value: value, Rule: fmt.Sprintf(rule, args...)}
}

// maxQuoted and maxQuotedPath bound in bytes how much of a value an error message repeats.
const (
	maxQuoted     = 64
	maxQuotedPath = 200
)

// Quote writes a value for the Value of a [FieldError]: on one line, in double
// quotes, control characters escaped, and cut after 64 bytes.
func Quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	cut := strings.ToValidUTF8(s[:maxQuoted], "")
	return strconv.Quote(cut) + "… (" + strconv.Itoa(len(s)) + " bytes)"
}

// QuotePath is [Quote] for a path, whose end people need to see: it is cut after 200 bytes.
func QuotePath(s string) string {
	if len(s) <= maxQuotedPath {
		return strconv.Quote(s)
	}
	return strconv.Quote(strings.ToValidUTF8(s[:maxQuotedPath], "")) + "…"
}
