package mounts

import (
	"errors"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
)

// checkMessage checks what all refusals of this package have in common.
func checkMessage(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*spec.FieldError](err)
	if !ok {
		t.Fatalf("error of type %T: %v", err, err)
	}
	isControl := func(r rune) bool { return r < 0x20 || r == 0x7f }
	if strings.ContainsFunc(err.Error(), isControl) || len(err.Error()) > 2000 {
		t.Errorf("not one short line: %q", err)
	}
	if !strings.HasPrefix(e.Field, "mount") || e.Value == "" || e.Rule == "" {
		t.Errorf("error without field, value or rule: %+v", e)
	}
}
