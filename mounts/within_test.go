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

func TestValidateWithin(t *testing.T) {
	for _, c := range []struct{ source, within, want string }{
		{"/a/b", "/a", ""},
		{"/a", "/a", ""},
		{"//a/./b/", "/a", ""},
		{"/a/b", "/", ""},
		{"/", "/", ""},
		{"/a/b/../../c", "/a", ""}, // Open refuses it: what b is, counts
		{"/ab", "/a", `must lie in the directory "/a"`},
		{"/a", "/a/b", `must lie in the directory "/a/b"`},
		{"/a/../b", "/b", "must lie in the directory"},
		{"/b/a", "/a", "must lie in the directory"},
		{"/a", "a", "must be an absolute path"},
		{"/a", "/a/", `must be written as "/a"`},
		{"/a/b", "/a/../a", `must be written as "/a"`},
		{"/a", "/a\x00", "control characters"},
		{"/a", "/" + strings.Repeat("x", 256), "component of 256 bytes"},
	} {
		err := spec.Mount{Source: c.source, Target: "/t", Within: c.within}.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q within %q: %v, want %q", c.source, c.within, err, c.want)
		}
		if err != nil {
			checkMessage(t, err)
		}
	}
}

func TestOpenWithin(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	for _, err := range []error{
		os.MkdirAll(at("root/dir/sub"), 0o755),
		os.MkdirAll(at("rooted"), 0o755),
		os.WriteFile(at("root/file"), nil, 0o644),
		os.WriteFile(at("outside"), nil, 0o644),
		os.Symlink("root", at("link-to-root")),
		os.Symlink("dir/sub", at("root/in")),
		os.Symlink("../../root/dir", at("root/dir/out-and-in")),
		os.Symlink("../outside", at("root/out")),
		os.Symlink("..", at("root/above")),
		os.Symlink(".", at("root/self")),
		os.Symlink(at("root/dir"), at("root/absolute")),
		os.Symlink("/proc/self/cwd", at("root/magic")),
		os.Symlink("nothing", at("root/dangling")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	const leaves = "leaves the directory"
	for _, c := range []struct{ source, within, path, want string }{
		{"root", "root", "root", ""},
		{"root/", "root", "root", ""},
		{"root/dir", "root", "root/dir", ""},
		{"root/dir/../file", "root", "root/file", ""},
		{"root/in", "root", "root/dir/sub", ""},
		{"root/self/self/dir", "root", "root/dir", ""},
		{"root/file", "root", "root/file", ""},
		{"link-to-root/dir", "link-to-root", "root/dir", ""},
		{"link-to-root", "link-to-root", "root", ""},
		{"root/out", "root", "", leaves},
		{"root/above", "root", "", leaves},
		{"root/above/root/dir", "root", "", leaves},
		{"root/..", "root", "", leaves},
		{"root/../outside", "root", "", leaves},
		{"root/../root/dir", "root", "", leaves},
		{"root/dir/out-and-in", "root", "", leaves},
		{"root/absolute", "root", "", leaves},
		{"root/absolute/sub", "root", "", leaves},
		{"root/magic", "root", "", leaves},
		{"root/dangling", "root", "", "does not exist"},
		{"root/nothing", "root", "", "does not exist"},
		{"root/file/", "root", "", "passes something that is not a directory"},
		{"rooted", "root", "", "must lie in the directory"},
		{"link-to-root/dir", "root", "", "must lie in the directory"},
		{"none/dir", "none", "", "must be a directory that can be opened"},
		{"outside", "outside", "", "must be a directory that can be opened"},
	} {
		// Not filepath.Join: it would take ".." away.
		m := spec.Mount{Source: base + "/" + c.source, Target: "/t", Within: at(c.within)}
		s, err := Open(m, nil)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.within) {
				t.Errorf("%s within %s: %v, want %q", c.source, c.within, err, c.want)
			} else {
				checkMessage(t, err)
			}
			if err == nil {
				s.Close()
			}
			continue
		}
		if err != nil {
			t.Errorf("%s within %s: %v", c.source, c.within, err)
			continue
		}
		if s.Path != at(c.path) {
			t.Errorf("%s within %s: opened %s", c.source, c.within, s.Path)
		}
		s.Close()
	}
}

// A root that is allowed does not allow what is never mounted.
func TestDenyCountsWithin(t *testing.T) {
	for _, source := range []string{"/etc", "/etc/ssl", "/proc/self", "/"} {
		_, err := Open(spec.Mount{Source: source, Target: "/t", Within: "/"}, DefaultDeny)
		var bad *spec.FieldError
		if !errors.As(err, &bad) {
			t.Errorf("%s: %v, want a refusal", source, err)
		}
	}
}

// A directory beneath the root is constantly exchanged with a symlink that leads out.
// Nothing outside is ever opened.
func TestSwappedSourceNeverLeaves(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "root")
	for _, dir := range []string{"root/swapped/deep/dir", "outside/deep/dir"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../outside", filepath.Join(root, "other")); err != nil {
		t.Fatal(err)
	}
	for _, rel := range []string{"swapped", "swapped/deep/dir", "swapped/deep/../deep/dir"} {
		source := root + "/" + rel
		want := statOf(t, source)
		stop := swapper(t, filepath.Join(root, "swapped"), filepath.Join(root, "other"))
		opened, refused := 0, 0
		for i := 0; i < 20000 && (i < 1000 || opened == 0 || refused == 0); i++ {
			f, err := Root{}.resolve(spec.Mount{Source: source, Target: "/t", Within: root})
			if err != nil {
				refused++
				continue
			}
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Ino != want.Ino || st.Dev != want.Dev {
				t.Errorf("%s: opened inode %d, %v, want %d", rel, st.Ino, err, want.Ino)
			}
			f.Close()
			opened++
		}
		stop()
		// The names may have been left the other way round.
		if st, err := os.Lstat(filepath.Join(root, "other")); err == nil && st.IsDir() {
			if err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(root, "swapped"), unix.AT_FDCWD, filepath.Join(root, "other"), unix.RENAME_EXCHANGE); err != nil {
				t.Fatal(err)
			}
		}
		if opened == 0 || refused == 0 {
			t.Errorf("%s: opened %d times, refused %d times: the race was not hit", rel, opened, refused)
		}
	}
}

// The descriptor that was checked is the one that is mounted, within a root too.
func TestWithinOnHost(t *testing.T) {
	testutil.RequireRoot(t)
	dir := ownedDir(t)
	s, err := Open(spec.Mount{Source: dir, Target: "/t", Within: filepath.Dir(dir)}, DefaultDeny)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tree, err := s.Tree(mappedOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	tree.Close()
}
