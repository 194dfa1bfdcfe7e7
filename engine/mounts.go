package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/boxd/boxd/mounts"
)

// validateMounts lets the mounts package judge and says which element of field
// is meant.
func validateMounts(field string, list []mounts.Mount) error {
	for i, m := range list {
		if err := m.Validate(); err != nil {
			return mountError(fmt.Sprintf("%s[%d]", field, i), err)
		}
	}
	if err := mounts.ValidateAll(list); err != nil {
		return mountError(field, err)
	}
	return nil
}

// mountError is err, an error of the mounts package, as a FieldError: its
// "mount source" becomes "mounts[1].source".
func mountError(field string, err error) error {
	var bad *mounts.Error
	if !errors.As(err, &bad) {
		return fmt.Errorf("%s: %w", field, err)
	}
	if part, ok := strings.CutPrefix(bad.Field, "mount "); ok {
		field += "." + part
	}
	return &FieldError{field, bad.Value, bad.Rule}
}
