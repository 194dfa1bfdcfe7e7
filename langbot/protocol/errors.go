package protocol

import (
	"errors"
	"fmt"
)

// Class is the name of an error class, which clients find in the error's message.
type Class string

// The classes. Clients know the first nine, and treat all others as BoxError.
const (
	Admission              Class = "BoxAdmissionError"
	Readiness              Class = "BoxReadinessError"
	CapacityExceeded       Class = "BoxCapacityExceededError"
	BoxValidation          Class = "BoxValidationError"
	SessionNotFound        Class = "BoxSessionNotFoundError"
	SessionConflict        Class = "BoxSessionConflictError"
	ManagedProcessNotFound Class = "BoxManagedProcessNotFoundError"
	ManagedProcessConflict Class = "BoxManagedProcessConflictError"
	BackendUnavailable     Class = "BoxBackendUnavailableError"

	BoxError           Class = "BoxError"
	RuntimeUnavailable Class = "BoxRuntimeUnavailableError"
	PermissionError    Class = "PermissionError"
	ValueError         Class = "ValueError"
	KeyError           Class = "KeyError"

	// validation is the class of errors in the envelope.
	validation Class = "ValidationError"
)

// Error is a failure as reported to the client. Without a Class, the text is the whole
// message.
type Error struct {
	Class Class
	Text  string
}

func (e *Error) Error() string {
	if e.Class == "" {
		return e.Text
	}
	return string(e.Class) + ": " + e.Text
}

// Errorf returns an *Error whose text is formatted.
func Errorf(c Class, format string, a ...any) *Error {
	return &Error{Class: c, Text: fmt.Sprintf(format, a...)}
}

// ErrIgnore is returned by Parse for a message that gets no reply.
var ErrIgnore = errors.New("not a request")

// ErrStale is the error of an action whose generation is not the current one.
var ErrStale = &Error{Class: PermissionError, Text: "Stale Box placement generation"}
