package launcher

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/internal/version"
)

// TestProofNoted: a proof counts only if it is of this boot, kernel and build, and if nobody but root can have noted it.
func TestProofNoted(t *testing.T) {
	testutil.RequireRoot(t)
	defer func(v string) { version.Version = v }(version.Version)
	version.Version = "v1"
	proof := kernelProof()
	version.Version = "v2"
	if other := kernelProof(); proof == "" || other == proof {
		t.Fatalf("two builds note %q and %q", proof, other)
	}
	version.Version = version.Unstamped
	if p := kernelProof(); p != "" {
		t.Errorf("a build without a name notes %q", p)
	}
	for name, c := range map[string]struct {
		spoil func(path string) error
		want  bool
	}{
		"noted":                {func(string) error { return nil }, true},
		"never noted":          {func(p string) error { return os.Truncate(p, 0) }, false},
		"half":                 {func(p string) error { return os.Truncate(p, 20) }, false},
		"more":                 {func(p string) error { return os.WriteFile(p, []byte(proof+"\n"), 0o600) }, false},
		"another boot":         {func(p string) error { return os.WriteFile(p, []byte("x"+proof[1:]), 0o600) }, false},
		"of another user":      {func(p string) error { return os.Chown(p, 1, 0) }, false},
		"writable for a group": {func(p string) error { return os.Chmod(p, 0o620) }, false},
		"writable for all":     {func(p string) error { return os.Chmod(p, 0o602) }, false},
		"a symlink":            {func(p string) error { return relink(p, os.Symlink) }, false},
		"a hard link":          {func(p string) error { return relink(p, os.Link) }, false},
		"missing":              {os.Remove, false},
		"a directory":          {func(p string) error { _ = os.Remove(p); return os.Mkdir(p, 0o700) }, false},
	} {
		path := filepath.Join(t.TempDir(), "lock")
		if err := os.WriteFile(path, []byte("an earlier and longer one: "+proof), 0o600); err != nil {
			t.Fatal(err)
		}
		noteProof(path, proof)
		if err := c.spoil(path); err != nil {
			t.Fatal(err)
		}
		if got := hasProof(path, proof); got != c.want {
			t.Errorf("%s: counts: %v, want %v", name, got, c.want)
		}
	}
	nowhere := filepath.Join(t.TempDir(), "lock")
	noteProof(nowhere, proof)
	if _, err := os.Lstat(nowhere); err == nil {
		t.Error("noting a proof has made the file")
	}
}

// relink moves the file at path away and puts a link to it there.
func relink(path string, link func(old, path string) error) error {
	moved := path + ".moved"
	if err := os.Rename(path, moved); err != nil {
		return err
	}
	return link(moved, path)
}
