package mounts

import (
	"errors"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
)

func TestIsBelow(t *testing.T) {
	for _, c := range []struct {
		p, dir string
		want   bool
	}{
		{"/a", "/a", true},
		{"/a/b", "/a", true},
		{"/ab", "/a", false},
		{"/a", "/a/b", false},
		{"/a", "/", true},
		{"/", "/", true},
	} {
		if got := isBelow(c.p, c.dir); got != c.want {
			t.Errorf("isBelow(%q, %q) = %v", c.p, c.dir, got)
		}
	}
}

// checkMessage holds what every refusal of this package has in common.
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
