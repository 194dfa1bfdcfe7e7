package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// mappedOptions maps owner to the root of a testBox.
func mappedOptions(t testing.TB) TreeOptions {
	t.Helper()
	m := OwnerMap(owner, owner, boxBase, boxBase)
	ns, err := UserNS(m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return TreeOptions{Map: m, UserNS: ns}
}

// openTree calls Open and Tree for a directory or file of owner.
func openTree(t testing.TB, path string, o TreeOptions) *os.File {
	t.Helper()
	s, err := Open(spec.Mount{Source: path, Target: "/t"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tree, err := s.Tree(o)
	if s.place.fs.FSType == "tmpfs" && errors.Is(err, unix.EINVAL) {
		testutil.RequireFeature(t, "id-mapped tmpfs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

func TestTreeFlags(t *testing.T) {
	testutil.RequireRoot(t)
	mapped := mappedOptions(t)
	for _, c := range []struct {
		name    string
		options TreeOptions
		want    int64
		uid     uint32
	}{
		{"plain", TreeOptions{}, unix.ST_NOSUID | unix.ST_NODEV, owner},
		{"read-only", TreeOptions{ReadOnly: true}, unix.ST_NOSUID | unix.ST_NODEV | unix.ST_RDONLY, owner},
		{"mapped", mapped, unix.ST_NOSUID | unix.ST_NODEV, boxBase},
		{"mapped read-only", TreeOptions{true, mapped.Map, mapped.UserNS}, unix.ST_NOSUID | unix.ST_NODEV | unix.ST_RDONLY, boxBase},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree := openTree(t, ownedDir(t), c.options)
			const all = unix.ST_NOSUID | unix.ST_NODEV | unix.ST_RDONLY
			if fs, err := linux.Fstatfs(tree); err != nil || fs.Flags&all != c.want {
				t.Errorf("flags %#x, %v, want %#x", fs.Flags&all, err, c.want)
			}
			if st, err := linux.Fstat(tree); err != nil || st.Uid != c.uid || st.Gid != c.uid {
				t.Errorf("owner %d:%d, %v, want %d", st.Uid, st.Gid, err, c.uid)
			}
		})
	}
}

func TestTreeRefusesMapWithoutTheOwner(t *testing.T) {
	testutil.RequireRoot(t)
	o := mappedOptions(t)
	s, err := Open(spec.Mount{Source: t.TempDir()}, nil) // belongs to root
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Tree(o); err == nil || !strings.Contains(err.Error(), "its owner 0:0 is not in the id map") {
		t.Errorf("%v", err)
	}
}

// Later mounts inside a source on a shared mount must not propagate.
func TestTreeIsPrivate(t *testing.T) {
	testutil.RequireRoot(t)
	dir, point := t.TempDir(), t.TempDir()
	if err := os.Mkdir(dir+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	inPrivateNamespace(t, func() error {
		err := errors.Join(
			unix.Mount(dir, dir, "", unix.MS_BIND, ""),
			unix.Mount("", dir, "", unix.MS_SHARED, ""))
		if err != nil {
			return err
		}
		s, err := Open(spec.Mount{Source: dir}, nil)
		if err != nil {
			return err
		}
		defer s.Close()
		tree, err := s.Tree(TreeOptions{})
		if err != nil {
			return err
		}
		defer tree.Close()
		if err := linux.MoveMount(tree, nil, point); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir+"/sub", "tmpfs", 0, ""); err != nil {
			return err
		}
		if err := os.WriteFile(dir+"/sub/secret", nil, 0o600); err != nil {
			return err
		}
		if _, err := os.Stat(point + "/sub/secret"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a mount below the source has appeared in the clone: %v", err)
		}
		return nil
	})
}

// If the kernel cannot map a file system, the error names it and an alternative.
func TestTreeOnUnmappableFileSystems(t *testing.T) {
	testutil.RequireRoot(t)
	base, o := ownedDir(t), mappedOptions(t)
	for _, dir := range []string{"lower", "upper", "work", "mnt"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mnt := base + "/mnt"
	overlay := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", base)
	for _, c := range []struct{ fsType, options, want string }{
		{"overlay", overlay, "lies on a overlay file system, which this kernel cannot id-map: use a directory on ext4"},
		{"ramfs", "", "lies on a ramfs file system, which this kernel cannot id-map: use a directory on ext4"},
	} {
		inPrivateNamespace(t, func() error {
			if err := unix.Mount(c.fsType, mnt, c.fsType, 0, c.options); err != nil {
				return fmt.Errorf("mounting %s: %w", c.fsType, err)
			}
			if err := os.Chown(mnt, owner, owner); err != nil {
				return err
			}
			checkTreeError(t, mnt, o, c.want)
			return nil
		})
	}
	inPrivateNamespace(t, func() error {
		tree := openTree(t, base, o)
		if err := linux.MoveMount(tree, nil, mnt); err != nil {
			return err
		}
		checkTreeError(t, mnt, o, "cannot be id-mapped: it lies on a mount that is id-mapped already")
		return nil
	})
}

func checkTreeError(t *testing.T, dir string, o TreeOptions, want string) {
	t.Helper()
	s, err := Open(spec.Mount{Source: dir}, nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	tree, err := s.Tree(o)
	if err == nil {
		tree.Close()
		t.Errorf("%s was mapped, want %q", s.place.fs.FSType, want)
		return
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	checkMessage(t, err)
}
