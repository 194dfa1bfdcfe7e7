package mounts

import (
	"errors"
	"fmt"

	"github.com/boxd/boxd/engine/spec"
)

// Conditions that callers distinguish with errors.Is.
var (
	// ErrNoTarget means that the mount point does not exist in the box.
	ErrNoTarget = errors.New("mount point does not exist in the box")
	// ErrNotAttached means that the mount from Attach is not at the target.
	ErrNotAttached = errors.New("nothing is attached there")
)

const fieldRoot = "mount root"

// refuse returns an error that says which rule a path breaks. The caller adds the kernel's
// error, or one of the conditions above, with Because.
func refuse(field, path, rule string, args ...any) *spec.FieldError {
	return &spec.FieldError{Field: field, Value: spec.QuotePath(path), Rule: fmt.Sprintf(rule, args...)}
}
