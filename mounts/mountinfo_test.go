package mounts

import "testing"

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
