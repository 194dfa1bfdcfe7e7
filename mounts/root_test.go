package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

// TestOpenRoot: the path to a root may pass only symlinks of root.
func TestOpenRoot(t *testing.T) {
	testutil.RequireRoot(t)
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	const other = 4242
	for _, err := range []error{
		os.MkdirAll(at("real/dir"), 0o755), os.WriteFile(at("real/file"), nil, 0o644),
		os.Symlink("real/dir", at("ours")), os.Symlink(at("real"), at("absolute")), os.Symlink("ours", at("twice")), os.Symlink("real/../real/./dir", at("winding")),
		os.Symlink("real/dir", at("theirs")), os.Lchown(at("theirs"), other, other),
		os.Mkdir(at("alices"), 0o755), os.Mkdir(at("alices/dir"), 0o755), os.Symlink("../real/dir", at("alices/link")), os.Chown(at("alices"), other, other),
		os.Mkdir(at("open"), 0o755), os.Symlink("../real/dir", at("open/link")), os.Chmod(at("open"), 0o777),
		os.Mkdir(at("sticky"), 0o755), os.Symlink("../real/dir", at("sticky/link")), os.Chmod(at("sticky"), 0o777|os.ModeSticky),
		os.Symlink("theirs", at("through")), os.Symlink("loop", at("loop")), os.Symlink("nothing", at("dangling")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.Stat(at("real/dir"))
	if err != nil {
		t.Fatal(err)
	}
	const theirs = "which others than root can change"
	for name, rule := range map[string]string{
		"real/dir": "", "ours": "", "absolute/dir": "", "twice": "", "winding": "",
		"theirs": theirs, "alices/link": theirs, "open/link": theirs, "sticky/link": theirs, "through": theirs, "loop": theirs,
		"real/file": "is not a directory", "real/file/x": "is not a directory", "dangling": "cannot be opened", "real/../real": "must be written as",
	} {
		r, err := OpenRoot(base+"/"+name, nil)
		if rule != "" {
			if err == nil || !strings.Contains(err.Error(), rule) {
				t.Errorf("%s: %v, want %q", name, err, rule)
			} else {
				checkMessage(t, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := r.dir.Stat()
		if err != nil || !os.SameFile(got, want) {
			t.Errorf("%s: another directory, %v", name, err)
		}
		r.Close()
	}
	if r, err := OpenRoot(at("alices/dir"), &Owner{UID: other + 1, GID: other + 1}); err != nil {
		t.Errorf("a directory of another user without symlinks: %v", err)
	} else {
		r.Close()
	}
}

// TestRootOfAStranger: a root is refused if a stranger could put another directory in its place.
func TestRootOfAStranger(t *testing.T) {
	testutil.RequireRoot(t)
	base := t.TempDir() // with directories of root's above, and the sticky one of all
	const uid, gid = 4242, 4343
	for _, c := range []struct {
		uid, gid int
		mode     os.FileMode
		refused  bool
	}{
		{0, 0, 0o755, false}, {uid, 0, 0o755, true}, {uid, 0, 0o555, true}, {0, gid, 0o755, false}, {0, gid, 0o775, true}, {0, gid + 1, 0o775, true}, {0, 0, 0o775, true},
		{0, 0, 0o757, true}, {0, 0, 0o777 | os.ModeSticky, false}, {0, gid, 0o775 | os.ModeSticky, false}, {uid, 0, 0o777 | os.ModeSticky, true}, {uid + 1, gid + 1, 0o755, false},
	} {
		dir := filepath.Join(base, "above")
		err := errors.Join(os.MkdirAll(dir+"/in/root", 0o755), os.Chown(dir, c.uid, c.gid), os.Chmod(dir, c.mode))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{dir + "/in", dir + "/in/root"} {
			r, err := OpenRoot(name, &Owner{UID: uid, GID: gid})
			if err == nil {
				r.Close()
			} else {
				checkMessage(t, err)
			}
			if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "can put another in its place") {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
}

// TestRootHolds: a mount can only narrow the root, and nothing leads out of it.
func TestRootHolds(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	for _, err := range []error{
		os.MkdirAll(at("root/in/deep"), 0o755), os.MkdirAll(at("out/deep"), 0o755),
		os.Symlink("../out", at("root/out")), os.Symlink("in", at("root/link")), os.Symlink(at("root/in"), at("root/absolute")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r, err := OpenRoot(at("root"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, c := range []struct{ source, within, noLinks, want string }{
		{"root", "", "", ""},
		{"root/in/deep", "", "", ""},
		{"root/in/deep", ".", "", ""},
		{"root/in/deep", "root/in", "", ""},
		{"root/in/deep", "root/in", "root/in", ""},
		{"root/in/deep", ".", ".", ""},
		{"root/in/deep", "root/link", "", "must lie in"},
		{"root/link/deep", "root/link", "", ""},
		{"root/link/deep", "", "root", "passes a symlink"},
		{"root/link/deep", ".", ".", "passes a symlink"},
		{"root/absolute", "", "", "leaves the directory"},
		{"root/absolute/deep", "root/absolute", "", "must be a directory that can be opened"},
		{"root/out", "", "", "leaves the directory"},
		{"root/out/deep", "root/out", "", "must be a directory that can be opened"},
		{"root/../out", "", "", "leaves the directory"},
		{"root/in/../../out", "root", "", "leaves the directory"},
		{"out", "", "", "must lie in"},
		{"out/deep", "out", "", "must"},
		{".", "", "", "must lie in"},
	} {
		m := spec.Mount{Source: base + "/" + c.source, Target: "/t"}
		if c.source == "." {
			m.Source = base
		}
		if c.within != "" {
			m.Within = filepath.Join(base, c.within)
		}
		if c.noLinks != "" {
			m.NoLinks = filepath.Join(base, c.noLinks)
		}
		s, err := r.Open(m, nil)
		if err == nil {
			s.Close()
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", m, err, c.want)
		}
	}
	for source, want := range map[string]string{
		"root/new/er": "", "root/in/new": "", "root/out/new": "symlink", "out/new": "must lie in", "root/link/new": "symlink",
	} {
		s, err := r.Make(spec.Mount{Source: at(source), Target: "/t", Within: base}, nil)
		if err == nil {
			s.Close()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("making %s: %v, want %q", source, err, want)
		}
	}
	no := errors.New("not this one")
	r.Allow = func(uint32, uint32) error { return no }
	if _, err := r.Open(spec.Mount{Source: at("root/in"), Target: "/t"}, nil); !errors.Is(err, no) {
		t.Errorf("opening what is not allowed: %v", err)
	}
	if _, err := r.Make(spec.Mount{Source: at("root/in/x/y"), Target: "/t", Within: base}, nil); !errors.Is(err, no) {
		t.Errorf("making in what is not allowed: %v", err)
	}
	if err := unix.Access(at("root/in/x"), unix.F_OK); !errors.Is(err, unix.ENOENT) {
		t.Errorf("it was made: %v", err)
	}
}
