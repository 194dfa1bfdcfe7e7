package mounts

import (
	"errors"
	"fmt"

	"github.com/boxd/boxd/engine/spec"
)

// Conditions that callers tell apart with errors.Is.
var (
	// ErrNoTarget: the mount point does not exist in the box.
	ErrNoTarget = errors.New("mount point does not exist in the box")
	// ErrNotAttached: at the target there is no mount that Attach made.
	ErrNotAttached = errors.New("nothing is attached there")
)

const fieldRoot = "mount root"

// refuse says which rule a path breaks. The caller adds what the kernel said, or one of
// the conditions above, with Because.
func refuse(field, path, rule string, args ...any) *spec.FieldError {
	return &spec.FieldError{Field: field, Value: spec.QuotePath(path), Rule: fmt.Sprintf(rule, args...)}
}
