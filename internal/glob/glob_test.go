package glob

import (
	"path"
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct{ pattern, yes, no string }{
		{"*.png", "a.png .png d.png/x", "a.pn a/b.png png"},
		{"**/*.png", "a.png a/b.png a/b/c.png", "a/b.jpg a"},
		{"src", "src src/a src/a/b", "src2 a/src"},
		{"src/*.go", "src/a.go", "src src/a/b.go a.go"},
		{"src/**/test", "src/test src/a/test src/a/b/test/x", "src src/a test"},
		{"**", "a a/b", ""},
		{"a/**", "a a/b a/b/c", "b"},
		{"a/**/**/b", "a/b a/x/b", "a b"},
		{"[ab]?", "ax b1", "cx a"},
		{`a\*`, "a*", "ab"},
	} {
		s, err := Parse([]string{c.pattern})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range strings.Fields(c.yes) {
			if !s.Match(p) {
				t.Errorf("%s does not match %s", c.pattern, p)
			}
		}
		for _, p := range strings.Fields(c.no) {
			if s.Match(p) {
				t.Errorf("%s matches %s", c.pattern, p)
			}
		}
	}
	if !(Set{}).Match("anything/at/all") {
		t.Error("the empty set does not match")
	}
	two, _ := Parse([]string{"a/*.c", "b"})
	if !two.Match("a/x.c") || !two.Match("b/c") || two.Match("a/b") {
		t.Error("two patterns")
	}
}

// TestPossible: directories in which nothing can match need not be read.
func TestPossible(t *testing.T) {
	s, _ := Parse([]string{"src/*.go"})
	if !s.Begin().Enter("src").Possible() || s.Begin().Enter("src").Matched() || s.Begin().Enter("doc").Possible() || s.Begin().Enter("src").Enter("a").Possible() {
		t.Error("src/*.go")
	}
}

func TestBadPatterns(t *testing.T) {
	for _, p := range []string{"", "/", "/a", "a/", "a//b", "../a", "a/./b", "[", "a[", `a\`, "a\x00", strings.Repeat("a", MaxLength+1)} {
		if _, err := Parse([]string{p}); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.20q: %v", p, err)
		}
	}
	if _, err := Parse(make([]string, MaxPatterns+1)); err == nil {
		t.Error("too many patterns")
	}
}

// FuzzMatch: without "**", a Set agrees with path.Match.
func FuzzMatch(f *testing.F) {
	f.Add("a/*.go", "a/b.go")
	f.Add("**/x/**", "x/y")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		s, err := Parse([]string{pattern})
		if err != nil {
			return
		}
		got := s.Match(name)
		if strings.Contains(pattern, "**") {
			return
		}
		// A class such as [^a] of path.Match also matches a slash.
		if want, _ := path.Match(pattern, name); want && !got && strings.Count(pattern, "/") == strings.Count(name, "/") {
			t.Errorf("%q does not match %q", pattern, name)
		}
	})
}
