package mounts

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Conditions that callers tell apart with errors.Is.
var (
	// ErrNoTarget: the mount point does not exist in the box.
	ErrNoTarget = errors.New("mount point does not exist in the box")
	// ErrNotAttached: at the target there is no mount that Attach made.
	ErrNotAttached = errors.New("nothing is attached there")
)

// Error is a mount that breaks a rule: one line naming field, value and rule.
type Error struct {
	Field string // "mount source", "mount target", "mount option", "mount" or "mounts"
	Value string // quoted, shortened if it is very long
	Rule  string // what would be right, or what to do
	Err   error  // what the kernel said, or one of the conditions above; may be nil
}

func (e *Error) Error() string { return fmt.Sprintf("%s %s: %s", e.Field, e.Value, e.Rule) }

func (e *Error) Unwrap() error { return e.Err }

const (
	fieldSource = "mount source"
	fieldTarget = "mount target"
	fieldVolume = "mount volume"
)

// refuse builds an Error without a cause.
func refuse(field, value, rule string, args ...any) *Error {
	return &Error{Field: field, Value: quote(value), Rule: fmt.Sprintf(rule, args...)}
}

// because adds the cause to e.
func (e *Error) because(err error) *Error {
	e.Err = err
	return e
}

// quote makes any bytes one printable word of bounded length.
func quote(s string) string {
	const most = 200
	if len(s) <= most {
		return strconv.Quote(s)
	}
	return strconv.Quote(strings.ToValidUTF8(s[:most], "")) + "…"
}
