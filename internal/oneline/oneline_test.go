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

func TestPrintable(t *testing.T) {
	for s, want := range map[string]string{
		"": "", "a b": "a b", "ä \u00a0\u4e16": "ä \u00a0\u4e16",
		"a\x1b[2Jb\r\n\tc": "a?[2Jb???c", "\x7f\u0080\u009b31m": "???31m", "\x00\xff": "?\ufffd",
	} {
		if got := Printable(s); got != want {
			t.Errorf("Printable(%q) = %q, want %q", s, got, want)
		}
	}
}
