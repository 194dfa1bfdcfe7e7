package glob

import (
	"path"
	"slices"
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

// TestBounds: no patterns cost much more than their length. Repetitions of "**" count once.
func TestBounds(t *testing.T) {
	s, err := Parse([]string{strings.Repeat("**/", 300) + "a/" + strings.Repeat("**/", 30) + "**"})
	if err != nil || len(s[0]) != 3 || !s.Match("x/y/a/z") || s.Match("x/y/z") {
		t.Errorf("%q, %v", s, err)
	}
	longest := strings.Repeat("*/", MaxNames-1) + "*"
	if s, err := Parse([]string{longest}); err != nil || !s.Match(longest) || s.Match(longest[2:]) {
		t.Errorf("%v", err)
	}
	for what, patterns := range map[string][]string{
		"pattern of 65 names: must have at most 64":     {longest + "/*"},
		"patterns of more than 16384 bytes altogether":  slices.Repeat([]string{strings.Repeat("a", MaxLength)}, 17),
		"65 patterns: must be at most 64":               slices.Repeat([]string{"a"}, 65),
		"pattern of 1025 bytes: must have at most 1024": {strings.Repeat("a", MaxLength+1)},
	} {
		if _, err := Parse(patterns); err == nil || !strings.HasPrefix(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// matches is what a pattern means: it takes exponential time.
func matches(pattern, names []string) bool {
	switch {
	case len(pattern) == 0:
		return true // and everything below
	case pattern[0] == "**":
		return matches(pattern[1:], names) || len(names) > 0 && matches(pattern, names[1:])
	case len(names) == 0:
		return false
	}
	ok, _ := path.Match(pattern[0], names[0])
	return ok && matches(pattern[1:], names[1:])
}

// FuzzMeaning compares a Set with the meaning of its patterns.
func FuzzMeaning(f *testing.F) {
	f.Add("a/**/**/b", "*/c", "a/x/b/c")
	f.Add("**/a/**/a", "**", "a/a")
	f.Add("a/**", "b", "a")
	f.Fuzz(func(t *testing.T, one, two, name string) {
		s, err := Parse([]string{one, two})
		if err != nil || len(one)+len(two)+len(name) > 60 {
			return
		}
		names := strings.Split(name, "/")
		if got, want := s.Match(name), matches(strings.Split(one, "/"), names) || matches(strings.Split(two, "/"), names); got != want {
			t.Errorf("%q, %q: %q matches: %v, want %v", one, two, name, got, want)
		}
	})
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
