package files

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRenameInSteps: on a file system without RENAME_NOREPLACE, files, symlinks and directories get new names, and
// nothing is replaced or left behind.
func TestRenameInSteps(t *testing.T) {
	at := t.TempDir()
	dir, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	path := func(name string) string { return filepath.Join(at, name) }
	for _, err := range []error{
		os.WriteFile(path("file"), []byte("text"), 0o640), os.Symlink("nowhere", path("link")), os.MkdirAll(path("tree/below"), 0o750),
		os.WriteFile(path("taken"), nil, 0o600), os.Mkdir(path("empty"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, to string
		want     error
	}{
		{"file", "taken", unix.EEXIST}, {"file", "empty", unix.EEXIST}, {"tree", "taken", unix.EEXIST}, {"tree", "empty", unix.EEXIST},
		{"link", "taken", unix.EEXIST}, {"none", "new", unix.ENOENT}, {"tree", "tree/below/tree", unix.EINVAL},
		{"file", "file2", nil}, {"link", "link2", nil}, {"tree", "tree2", nil},
	} {
		to, base := dir, c.to
		if parent := filepath.Dir(c.to); parent != "." {
			if to, err = os.Open(path(parent)); err != nil {
				t.Fatal(err)
			}
			defer to.Close()
			base = filepath.Base(c.to)
		}
		if err := renameInSteps(dir, c.name, to, base); err != c.want {
			t.Errorf("%s to %s: %v, want %v", c.name, c.to, err, c.want)
		}
	}
	var names []string
	if err := filepath.WalkDir(at, func(p string, _ os.DirEntry, err error) error {
		if name, _ := filepath.Rel(at, p); name != "." {
			names = append(names, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := len(names); got != 6 {
		t.Errorf("%q", names)
	}
	if text, err := os.ReadFile(path("file2")); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := os.Readlink(path("link2")); err != nil || text != "nowhere" {
		t.Errorf("%q, %v", text, err)
	}
	if st, err := os.Stat(path("tree2/below")); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("%v, %v", st, err)
	}
}
