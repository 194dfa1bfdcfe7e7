package mounts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

func openRoot(t *testing.T, dir string) *os.File {
	t.Helper()
	root, err := linux.Openat2(nil, dir, unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func TestMakeMountPoint(t *testing.T) {
	base := t.TempDir()
	root := openRoot(t, base)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	for _, c := range []struct {
		target string
		dir    bool
	}{
		{"/a", true}, {"/a", true}, {"/a/b/c", true}, {"/a/f", false}, {"/a/f", false}, {"/x/y/f", false},
	} {
		if err := MakeMountPoint(root, c.target, c.dir); err != nil {
			t.Errorf("%s: %v", c.target, err)
			continue
		}
		st, err := os.Stat(filepath.Join(base, c.target))
		if err != nil || st.IsDir() != c.dir {
			t.Errorf("%s: %v, %v", c.target, st, err)
		} else if c.dir && st.Mode().Perm() != 0o755 {
			t.Errorf("%s: mode %v, whatever the umask it must be 0755", c.target, st.Mode())
		}
	}
}

func TestMakeMountPointRefuses(t *testing.T) {
	base, outside := t.TempDir(), t.TempDir()
	root := openRoot(t, base)
	for _, err := range []error{
		os.Mkdir(base+"/dir", 0o755),
		os.WriteFile(base+"/file", nil, 0o644),
		os.Symlink(outside, base+"/link"),
		os.Symlink("dir", base+"/inner"),
		unix.Mkfifo(base+"/fifo", 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		target string
		dir    bool
		want   string
	}{
		{"/link", true, `passes a symlink in the box at "link"`},
		{"/link", false, `passes a symlink in the box at "link"`},
		{"/link/x", true, `passes a symlink in the box at "link"`},
		{"/link/x", false, `passes a symlink in the box at "link"`},
		{"/inner/x", true, `passes a symlink in the box at "inner"`},
		{"/file", true, `"file" already exists as something else`},
		{"/file/x", true, `"file" already exists as something else`},
		{"/dir", false, `"dir" already exists as something else`},
		{"/fifo", false, `"fifo" already exists as something else`},
		{"/", true, "must not be the root of the box"},
		{"/dir/../x", true, `must not contain ".."`},
	} {
		err := MakeMountPoint(root, c.target, c.dir)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.target, err, c.want)
			continue
		}
		checkMessage(t, err)
	}
	if names, err := os.ReadDir(outside); err != nil || len(names) > 0 {
		t.Errorf("outside of the root: %v, %v", names, err)
	}
}

func TestMakeMountPointStopsAtMounts(t *testing.T) {
	base := t.TempDir()
	if err := os.Mkdir(base+"/usr", 0o755); err != nil {
		t.Fatal(err)
	}
	testutil.RequireRoot(t)
	inPrivateNamespace(t, func() error {
		if err := unix.Mount("tmpfs", base+"/usr", "tmpfs", 0, ""); err != nil {
			return err
		}
		root, err := linux.Openat2(nil, base, unix.OpenHow{Flags: unix.O_PATH})
		if err != nil {
			return err
		}
		defer root.Close()
		for _, target := range []string{"/usr", "/usr/data", "/usr/lib/data"} {
			err := MakeMountPoint(root, target, true)
			if err == nil || !strings.Contains(err.Error(), `cannot be created: "usr" is read-only there`) {
				t.Errorf("%s: %v", target, err)
			}
		}
		return nil
	})
	if names, err := os.ReadDir(base + "/usr"); err != nil || len(names) > 0 {
		t.Errorf("created beneath the mount: %v, %v", names, err)
	}
}
