package spec

import (
	"errors"
	"strings"
	"testing"
)

func TestParseMount(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Mount
	}{
		{"/srv/data:/data", Mount{Source: "/srv/data", Target: "/data"}},
		{"/srv/data:/data:rw", Mount{Source: "/srv/data", Target: "/data"}},
		{"/srv/data:/data:ro", Mount{Source: "/srv/data", Target: "/data", ReadOnly: true}},
		{"/srv/data/:/data/", Mount{Source: "/srv/data/", Target: "/data"}},
		{"/a//b:/c//./d", Mount{Source: "/a//b", Target: "/c/d"}},
		{"/a/../b:/b", Mount{Source: "/a/../b", Target: "/b"}}, // the kernel resolves the source
		{"/a b/ü:/c d", Mount{Source: "/a b/ü", Target: "/c d"}},
		{"/f:/etc/app.conf:ro", Mount{Source: "/f", Target: "/etc/app.conf", ReadOnly: true}},
		{"/a:/..b", Mount{Source: "/a", Target: "/..b"}},
		{"/a:/process", Mount{Source: "/a", Target: "/process"}},
	} {
		if got, err := ParseMount(c.in); err != nil || got != c.want {
			t.Errorf("ParseMount(%q) = %+v, %v, want %+v", c.in, got, err, c.want)
		}
	}
}

func TestParseMountRefuses(t *testing.T) {
	const form = `must be SOURCE:TARGET with an optional ":ro" or ":rw", such as /srv/data:/data:ro`
	for _, c := range []struct{ in, want string }{
		{"", `mount "": ` + form},
		{"/a", `mount "/a": ` + form},
		{"/a:/b:ro:x", `mount "/a:/b:ro:x": ` + form},
		{"/a:/b:", `mount option "": must be ro or rw`},
		{"/a:/b:RO", `mount option "RO": must be ro or rw`},
		{"/a:/b:ro,z", `mount option "ro,z": must be ro or rw`},
		{":/b", `mount source "": must not be empty`},
		{"/a:", `mount target "": must not be empty`},
		{"a:/b", `mount source "a": must be an absolute path`},
		{"./a:/b", `mount source "./a": must be an absolute path`},
		{"/a:b", `mount target "b": must be an absolute path`},
		{"/a:/b/../c", `mount target "/b/../c": must not contain ".."`},
		{"/a:/../c", `mount target "/../c": must not contain ".."`},
		{"/a:/", `mount target "/": must not be the root of the box`},
		{"/a:/.//", `mount target "/": must not be the root of the box`},
		{"/a:/proc/", `mount target "/proc": must not be /proc or below, which belongs to boxd`},
		{"/a\x00:/b", `mount source "/a\x00": must not contain control characters`},
		{"/a:/b\n", `mount target "/b\n": must not contain control characters`},
	} {
		_, err := ParseMount(c.in)
		if err == nil || err.Error() != c.want {
			t.Errorf("ParseMount(%q): %v, want %s", c.in, err, c.want)
		}
		if typed := new(FieldError); err != nil && !errors.As(err, &typed) {
			t.Errorf("ParseMount(%q): error of type %T", c.in, err)
		}
	}
}

// FuzzParseMount: text that is accepted gives a valid mount, whose text is parsed to the same
// mount. Other text is refused in one line.
func FuzzParseMount(f *testing.F) {
	for _, s := range []string{"/a:/b", "/a:/b:ro", "/a:/b/../c", "a:b", ":::", "/a\x00:/\n", "/a:/proc", "/é:/\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMount(s)
		if err != nil {
			checkMessage(t, err)
			return
		}
		if err := m.Validate(); err != nil {
			t.Errorf("ParseMount(%q) gave an invalid mount: %v", s, err)
		}
		if again, err := ParseMount(m.String()); err != nil || again != m {
			t.Errorf("ParseMount(%q.String()) = %+v, %v", m, again, err)
		}
	})
}

// checkMessage checks the common properties of all errors of this package.
func checkMessage(t *testing.T, err error) {
	t.Helper()
	var e *FieldError
	if !errors.As(err, &e) {
		t.Fatalf("error of type %T: %v", err, err)
	}
	if strings.ContainsFunc(err.Error(), isControl) || len(err.Error()) > 2000 {
		t.Errorf("not one short line: %q", err)
	}
	if !strings.HasPrefix(e.Field, "mount") || e.Value == "" || e.Rule == "" {
		t.Errorf("error without field, value or rule: %+v", e)
	}
}
