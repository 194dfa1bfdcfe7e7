package spec

import (
	"strings"
	"testing"
)

func TestParseReference(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0f", 32)
	for in, want := range map[string]string{ // "": no reference
		"python":                         "docker.io/library/python:latest",
		"python:3.12":                    "docker.io/library/python:3.12",
		"acme/tool":                      "docker.io/acme/tool:latest",
		"docker.io/python":               "docker.io/library/python:latest",
		"index.docker.io/library/python": "docker.io/library/python:latest",
		"ghcr.io/acme/team/tool:v1":      "ghcr.io/acme/team/tool:v1",
		"GHCR.io/a:1":                    "ghcr.io/a:1",
		"registry-1.docker.io/a":         "docker.io/library/a:latest",
		"localhost/a":                    "localhost/a:latest",
		"localhost:5000/a:b":             "localhost:5000/a:b",
		"10.0.0.1:5000/a":                "10.0.0.1:5000/a:latest",
		"python@" + digest:               "docker.io/library/python@" + digest,
		"python:3.12@" + digest:          "docker.io/library/python@" + digest,
		digest:                           digest,
		"a--b__c.d_e":                    "docker.io/library/a--b__c.d_e:latest",

		"": "", "Python": "", "a:": "", "a:-x": "", "a:b:c": "", "a@b": "", "a@sha256:12": "", "@" + digest: "", "a@" + digest + "@" + digest: "",
		"../x": "", "a/../b": "", "a//b": "", "/a": "", "a/": "", "http://a/b": "", "a b": "", "a\nb": "", "a___b": "", "a..b": "", ".a": "", "a-": "",
		"example.org:/a": "", "example.org:123456/a": "", "user:password@example.org/a": "", "[::1]:5000/a": "",
		"a:" + strings.Repeat("x", 129): "", strings.Repeat("a", 513): "", strings.Repeat("a", 500): "",
	} {
		r, ok := ParseReference(in)
		switch {
		case ok != (want != ""):
			t.Errorf("%q: a reference: %v", in, ok)
		case ok && r.String() != want:
			t.Errorf("%q: %q, want %q", in, r.String(), want)
		}
	}
}

func TestCheckReference(t *testing.T) {
	for in, want := range map[string]string{ // "": valid
		"docker.io/library/host":             "",
		"host:latest":                        "",
		"host":                               `name "host": means the host's own system directories: choose another name`,
		"sha256:" + strings.Repeat("0f", 32): "must be a reference",
		"A":                                  "must be a reference",
	} {
		_, err := CheckReference("name", in)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

func FuzzParseReference(f *testing.F) {
	f.Add("ghcr.io/a/b:c")
	f.Add("a@sha256:" + strings.Repeat("a", 64))
	f.Fuzz(func(t *testing.T, in string) {
		r, ok := ParseReference(in)
		if !ok {
			return
		}
		if again, ok := ParseReference(r.String()); !ok || again != r {
			t.Errorf("%q: %+v, and its text %q is %+v, %v", in, r, r, again, ok)
		}
		if strings.ContainsFunc(r.String(), func(c rune) bool { return c <= ' ' || c > '~' }) {
			t.Errorf("%q: %q", in, r)
		}
	})
}
