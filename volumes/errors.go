package volumes

import (
	"errors"
	"fmt"
)

// Conditions that callers distinguish with errors.Is.
var (
	// ErrNoQuota means that the file system has no project quota, or that it is off.
	ErrNoQuota = errors.New("no project quota")
	// ErrNoLoop means that this host cannot use a file as a block device, or cannot create
	// a file system in one.
	ErrNoLoop = errors.New("no images on loop devices")
	// ErrShrink means that an image cannot become smaller.
	ErrShrink = errors.New("an image can only grow")
	// ErrBusy means that the volume cannot grow while it is in use.
	ErrBusy = errors.New("volume is in use")
	// ErrWritten means that a volume was written to while it was copied.
	ErrWritten = errors.New("it was written to while it was copied")
	// ErrNoCopy means that a volume of this kind cannot be copied.
	ErrNoCopy = errors.New("only images can be copied")
	// ErrExists means that there is a volume of that name already.
	ErrExists = errors.New("volume exists")
	// ErrUnknown means that there is no volume of that name.
	ErrUnknown = errors.New("no such volume")
)

// Error reports a value that breaks a rule, in one line with field, value and rule.
type Error struct {
	Field string // "volume name", "volume bytes", "volume inodes", "data directory", "directory"
	Value string
	Rule  string // the rule, or what to do
	Err   error  // one of the conditions above, or the kernel's error; may be nil
}

func (e *Error) Error() string { return fmt.Sprintf("%s %s: %s", e.Field, e.Value, e.Rule) }

func (e *Error) Unwrap() error { return e.Err }

// refuse builds an Error without a cause.
func refuse(field string, value any, rule string, args ...any) *Error {
	v := fmt.Sprint(value)
	if s, ok := value.(string); ok {
		v = fmt.Sprintf("%.200q", s)
	}
	return &Error{Field: field, Value: v, Rule: fmt.Sprintf(rule, args...)}
}

// because adds the cause to e.
func (e *Error) because(err error) *Error {
	e.Err = err
	return e
}
