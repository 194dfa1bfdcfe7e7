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

func makeDirectory(source, within string, deny ...string) (*Source, error) {
	return Root{}.Make(spec.Mount{Source: source, Within: within, Target: "/t"}, deny)
}

func TestMakeBelongsToTheOwnerAbove(t *testing.T) {
	testutil.RequireRoot(t)
	base := ownedDir(t)
	if err := os.Chmod(base, 0o750); err != nil {
		t.Fatal(err)
	}
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	for range 2 { // what is there is found
		s, err := makeDirectory(base+"/a/b/c", base)
		if err != nil {
			t.Fatal(err)
		}
		if s.Path != base+"/a/b/c" || s.UID != owner || s.GID != owner || !s.IsDir {
			t.Errorf("%+v", s)
		}
		s.Close()
	}
	for _, dir := range []string{"/a", "/a/b", "/a/b/c"} {
		if st := statOf(t, base+dir); st.Uid != owner || st.Gid != owner || st.Mode != unix.S_IFDIR|0o750 {
			t.Errorf("%s: %d:%d, mode %o", dir, st.Uid, st.Gid, st.Mode)
		}
	}
	if s, err := makeDirectory(base, base); err != nil {
		t.Errorf("the directory itself: %v", err)
	} else {
		s.Close()
	}
}

func TestMakeRefusals(t *testing.T) {
	testutil.RequireRoot(t)
	base := ownedDir(t)
	at := func(name string) string { return filepath.Join(base, name) }
	victim := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(at("root/dir"), 0o755), os.MkdirAll(at("denied/in"), 0o755), os.WriteFile(at("root/file"), nil, 0o644),
		os.Symlink(victim, at("root/absolute")), os.Symlink("dir", at("root/relative")), os.Symlink("../denied", at("root/out")),
		os.Mkdir(at("root/closed"), 0o555),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ source, within, want string }{
		{"root/absolute/x", "root", "a symlink does not count"},
		{"root/absolute", "root", "a symlink does not count"},
		{"root/relative/x", "root", "a symlink does not count"},
		{"root/out/x", "root", "a symlink does not count"},
		{"root/file/x", "root", "not a directory"},
		{"root/file", "root", "not a directory"},
		{"root/closed/x", "root", "may not write to it"},
		{"root/../x", "root", "must be written as"},
		{"other/x", "root", "must lie in the directory"},
		{"denied/x", ".", "would lie in"},
		{"denied/in/x/y", ".", "would lie in"},
		{"gone/x", ".", "would lie in"}, // denied although it does not exist yet
		{"x", "gone", "must be a directory that can be opened"},
	} {
		source, within := at("")+"/"+c.source, at(c.within)
		if strings.HasPrefix(c.want, "must be a directory") {
			source = at("gone/x")
		}
		s, err := makeDirectory(source, within, "/", at("denied"), at("gone"))
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s within %s: %v, want %q", c.source, c.within, err, c.want)
			continue
		}
		var broken *spec.FieldError
		if !errors.As(err, &broken) {
			t.Errorf("%s: error of type %T", c.source, err)
		}
	}
	for _, dir := range []string{victim, at("denied/in"), at("root/dir"), at("root/closed")} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%s has %v, %v", dir, entries, err)
		}
	}
	if _, err := os.Lstat(at("gone")); err == nil {
		t.Error("a denied directory was made")
	}
}

// A box with the parent mounted keeps exchanging a directory in the path with symlinks.
// Nothing is ever created outside, and only the requested directory is opened.
func TestMakeAgainstSwaps(t *testing.T) {
	testutil.RequireRoot(t)
	base := ownedDir(t)
	victim := t.TempDir()
	place := filepath.Join(base, "place")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(place, "swapped"), 0o777), os.Chmod(victim, 0o777),
		os.Symlink(victim, filepath.Join(place, "other")), os.Chown(place, owner, owner), os.Chown(filepath.Join(place, "swapped"), owner, owner),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	stop := swapper(t, filepath.Join(place, "swapped"), filepath.Join(place, "other"))
	made, refused := 0, 0
	for i := 0; i < 20000 && (i < 500 || made == 0 || refused == 0); i++ {
		s, err := makeDirectory(filepath.Join(place, "swapped/x/y"), place)
		if err != nil {
			refused++
			continue
		}
		made++
		if s.UID != owner || !strings.HasPrefix(s.Path, place+"/") {
			t.Errorf("opened %+v", s)
		}
		s.Close()
		for _, dir := range []string{"swapped", "other"} { // one of them is the link
			_ = os.Remove(filepath.Join(place, dir, "x/y"))
			_ = os.Remove(filepath.Join(place, dir, "x"))
		}
	}
	stop()
	t.Logf("made %d times, refused %d times", made, refused)
	if made == 0 || refused == 0 {
		t.Error("the race was not hit")
	}
	if entries, err := os.ReadDir(victim); err != nil || len(entries) > 0 {
		t.Errorf("outside there is %v, %v", entries, err)
	}
}

func TestMakeIn(t *testing.T) {
	testutil.RequireRoot(t)
	base := ownedDir(t)
	if err := os.Symlink("/etc", base+"/link"); err != nil {
		t.Fatal(err)
	}
	root := rootOf(t, base)
	s, err := MakeIn(root, spec.Mount{Source: "/a/b", Target: "/t", Volume: "v"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if st := statOf(t, base+"/a/b"); st.Uid != owner || fileOf(t, s) != st.Ino {
		t.Errorf("%d, %+v", st.Uid, s)
	}
	for _, source := range []string{"/link/x", "/../x", "x"} {
		if s, err := MakeIn(root, spec.Mount{Source: source, Target: "/t", Volume: "v"}); err == nil {
			s.Close()
			t.Errorf("%s was made", source)
		}
	}
}
