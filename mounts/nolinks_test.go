package mounts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

func TestValidateNoLinks(t *testing.T) {
	for _, c := range []struct{ m, want string }{
		{"/a/b/c /a /a/b", ""},
		{"/a/b /a /a/b", ""},
		{"/a/b/c  /a/b", ""},
		{"/a/b /a /a", ""},
		{"/a/bc /a /a/b", `must lie in the directory "/a/b"`},
		{"/a/b /a /b", `must lie in the directory "/b"`},
		{"/a/b /a/b /a", `must lie in the directory "/a/b"`}, // NoLinks is out of Within
		{"/a/b /a b", "must be an absolute path"},
		{"/a/b /a /a/", `must be written as "/a"`},
	} {
		f := strings.Split(c.m, " ")
		err := spec.Mount{Source: f[0], Target: "/t", Within: f[1], NoLinks: f[2]}.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.m, err, c.want)
		}
		if err != nil {
			checkMessage(t, err)
		}
	}
	err := spec.Mount{Source: "/a", Target: "/t", Volume: "v", NoLinks: "/a"}.Validate()
	if err == nil || !strings.Contains(err.Error(), "must be empty for a source in a volume") {
		t.Errorf("in a volume: %v", err)
	}
}

// Below NoLinks no symlink is followed, wherever it leads; in the path to it they are.
func TestOpenNoLinks(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	for _, err := range []error{
		os.MkdirAll(at("root/v2/ns/one/sub"), 0o755),
		os.MkdirAll(at("root/v2/ns/victim"), 0o755),
		os.MkdirAll(at("root/v2/other/secret"), 0o755),
		os.WriteFile(at("root/v2/ns/one/file"), nil, 0o644),
		os.Symlink("v2", at("root/skills")),
		os.Symlink("../..", at("root/out")),
		os.Symlink("..", at("root/v2/ns/one/up")),
		os.Symlink("../victim", at("root/v2/ns/one/next")),
		os.Symlink("../../other/secret", at("root/v2/ns/one/other")),
		os.Symlink("sub", at("root/v2/ns/one/in")),
		os.Symlink(at("root/v2/ns/one/sub"), at("root/v2/ns/one/absolute")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	const link = "passes a symlink in the directory"
	for _, c := range []struct{ source, noLinks, want string }{
		{"root/skills/ns/one", "root/skills/ns", ""},
		{"root/skills/ns/one/sub/", "root/skills/ns", ""},
		{"root/v2/ns/one/file", "root/v2/ns", ""},
		{"root/skills/ns", "root/skills/ns", ""},
		{"root/skills/ns/one/up", "root/skills/ns", link},
		{"root/skills/ns/one/up/victim", "root/skills/ns", link},
		{"root/skills/ns/one/next", "root/skills/ns", link},
		{"root/skills/ns/one/other", "root/skills/ns", link},
		{"root/skills/ns/one/in", "root/skills/ns", link},
		{"root/skills/ns/one/absolute", "root/skills/ns", link},
		{"root/skills/ns/one/../victim", "root/skills/ns", ""},
		{"root/skills/ns/../other", "root/skills/ns", "leaves the directory"},
		{"root/skills/ns/none", "root/skills/ns", "does not exist"},
		{"root/v2/ns/one/file/x", "root/v2/ns/one/file", "not a directory"},
		{"root/skills/none/x", "root/skills/none", "does not exist"},
		{"root/out/x", "root/out", "leaves the directory"}, // Within holds for NoLinks
	} {
		m := spec.Mount{Source: base + "/" + c.source, Target: "/t", Within: at("root"), NoLinks: at(c.noLinks)}
		s, err := Open(m, nil)
		if err == nil {
			if strings.Contains(c.want, " ") || s.Path != strings.Replace(filepath.Clean(m.Source), "/skills/", "/v2/", 1) {
				t.Errorf("%s: opened %s, want %q", c.source, s.Path, c.want)
			}
			s.Close()
			continue
		}
		if c.want == "" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.source, err, c.want)
		}
		checkMessage(t, err)
	}
}

// The path must not pass a mount either.
func TestNoLinksNoMount(t *testing.T) {
	testutil.RequireRoot(t)
	dir := t.TempDir()
	sub := filepath.Join(dir, "ns/one")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", sub, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(sub, 0)
	s, err := Open(spec.Mount{Source: sub, Target: "/t", Within: dir, NoLinks: filepath.Join(dir, "ns")}, nil)
	if err == nil {
		s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "passes a mount") {
		t.Errorf("got %v", err)
	}
	s, err = Open(spec.Mount{Source: sub, Target: "/t", Within: dir, NoLinks: sub}, nil) // the operator's
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
