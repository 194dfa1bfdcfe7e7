package oneline

import (
	"errors"
	"testing"
)

func TestError(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("a: b"), "a: b"},
		{errors.New("a\n"), "a"},
		{errors.Join(errors.New("a"), errors.New("b"), errors.New("c")), "a; b; c"},
	} {
		if got := Error(c.err); got != c.want {
			t.Errorf("Error(%q) = %q, want %q", c.err, got, c.want)
		}
	}
}
