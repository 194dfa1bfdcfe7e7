package rpc

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/boxd/boxd/engine"
)

// An error keeps its meaning on the way to the client. A missing file is reported as such
// only if the client asked for it.
func TestErrors(t *testing.T) {
	field := &engine.FieldError{Field: "mount source", Value: "x", Rule: "does not exist"}
	for i, c := range []struct {
		err                            error
		field, missing, invalid, other bool
	}{
		{field, true, false, true, false},
		{errors.Join(field, ErrMissing), true, true, true, false},
		{fmt.Errorf("x: %w", ErrMissing), false, true, false, false},
		{fmt.Errorf("x: %w", fs.ErrNotExist), false, false, false, false},
		{fmt.Errorf("x: %w", engine.ErrInvalid), false, false, true, false},
		{fmt.Errorf("x: %w", engine.ErrUnenforceable), false, false, false, true},
	} {
		var e error = NewError(c.err)
		var f *engine.FieldError
		if errors.As(e, &f) != c.field || errors.Is(e, fs.ErrNotExist) != c.missing || errors.Is(e, engine.ErrInvalid) != c.invalid ||
			errors.Is(e, engine.ErrUnenforceable) != c.other || e.Error() != c.err.Error() {
			t.Errorf("%d: %v became %#v", i, c.err, e)
		}
	}
}
