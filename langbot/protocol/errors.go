package protocol

import (
	"errors"
	"fmt"
)

// Class is the name that a client reads off an error's message.
type Class string

// Classes. A client knows the first nine; all others are a BoxError to it.
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

	// validation is what is wrong with an envelope.
	validation Class = "ValidationError"
)

// Error is a failure as the client is told of it. Where there is no Class, the text
// is the whole message.
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

// ErrIgnore is returned by Parse for a message that gets no answer.
var ErrIgnore = errors.New("not a request")

// ErrStale is the failure of an action whose generation is not the current one.
var ErrStale = &Error{Class: PermissionError, Text: "Stale Box placement generation"}
