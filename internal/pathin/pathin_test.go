package pathin

import "testing"

func TestRel(t *testing.T) {
	for _, c := range []struct {
		p, dir, rel string
		in          bool
	}{
		{"/a", "/a", ".", true},
		{"/a/b", "/a", "b", true},
		{"/a/b/c", "/a", "b/c", true},
		{"/a/b", "/a/", "b", true},
		{"/ab", "/a", "", false},
		{"/a", "/a/b", "", false},
		{"/a", "/", "a", true},
		{"/", "/", ".", true},
		{"", "/", "", false},
		{"a", "/", "", false},
		{"a/b", "a", "b", true},
		{"ab", "a", "", false},
		{"a", ".", "a", true},
		{".", ".", ".", true},
		{"/a", ".", "", false},
		{"..", ".", "", false},
		{"../a", ".", "", false},
		{".", "a", "", false},
	} {
		rel, in := Rel(c.p, c.dir)
		if in != c.in || in && rel != c.rel {
			t.Errorf("Rel(%q, %q) = %q, %v, want %q, %v", c.p, c.dir, rel, in, c.rel, c.in)
		}
		if got := In(c.p, c.dir); got != c.in {
			t.Errorf("In(%q, %q) = %v", c.p, c.dir, got)
		}
		if got, want := Below(c.p, c.dir), c.in && c.rel != "."; got != want {
			t.Errorf("Below(%q, %q) = %v", c.p, c.dir, got)
		}
	}
}
