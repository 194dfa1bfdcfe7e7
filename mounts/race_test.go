package mounts

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// The source, or a directory above it, is constantly exchanged with a symlink to a denied
// tree. Whatever Open accepts, the mounted directory must be the good one.
func TestSwappedSourceIsNeverADeniedTree(t *testing.T) {
	testutil.RequireRoot(t)
	base := t.TempDir()
	good := filepath.Join(base, "dir/ssl")
	if err := os.MkdirAll(good, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, link, source string }{
		{"last component", "/etc/ssl", "swapped"},
		{"parent", "/etc", "swapped/ssl"},
		{"relative link", "../../../../etc", "swapped/ssl"},
	} {
		t.Run(c.name, func(t *testing.T) {
			place := filepath.Join(base, filepath.Base(t.Name()))
			if err := os.MkdirAll(filepath.Join(place, "swapped/ssl"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(c.link, filepath.Join(place, "other")); err != nil {
				t.Fatal(err)
			}
			source := filepath.Join(place, c.source)
			want := statOf(t, source)
			stop := swapper(t, filepath.Join(place, "swapped"), filepath.Join(place, "other"))
			mounted, refused := mountRepeatedly(t, source, want)
			stop()
			t.Logf("mounted %d times, refused %d times", mounted, refused)
			if mounted == 0 || refused == 0 {
				t.Errorf("mounted %d times, refused %d times: the race was not hit", mounted, refused)
			}
		})
	}
}

// mountRepeatedly opens source and makes a tree of it, which must be want.
func mountRepeatedly(t *testing.T, source string, want unix.Stat_t) (mounted, refused int) {
	t.Helper()
	// At least rounds times, and until both have happened, which depends on the scheduler.
	const rounds, most = 1000, 20000
	for i := 0; i < most && (i < rounds || mounted == 0 || refused == 0); i++ {
		s, err := Open(spec.Mount{Source: source, Target: "/t"}, DefaultDeny)
		if err != nil {
			refused++
			continue
		}
		tree, err := s.Tree(TreeOptions{})
		s.Close()
		if err != nil {
			t.Fatal(err)
		}
		st, err := linux.Fstat(tree)
		tree.Close()
		if err != nil {
			t.Fatal(err)
		}
		if st.Dev != want.Dev || st.Ino != want.Ino {
			t.Fatalf("round %d mounted something else: inode %d, want %d", i, st.Ino, want.Ino)
		}
		mounted++
	}
	return mounted, refused
}

// swapper exchanges two names until it is stopped.
func swapper(t *testing.T, a, b string) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
				t.Errorf("exchanging names: %v", err)
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func statOf(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// A box that can write to its root puts a symlink in place of each directory that is made for a
// mount point. What the symlink leads to keeps its mode.
func TestMountPointBecomesSymlink(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	top := filepath.Join(base, "root")
	if err := os.Mkdir(top, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenFile(top, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	point := filepath.Join(top, "point")
	swapped := 0
	end := make(chan struct{})
	var box sync.WaitGroup
	box.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			if unix.Rmdir(point) == nil && unix.Symlink(outside, point) == nil {
				swapped++
			}
			_ = unix.Unlink(point) // it may not be there
		}
	})
	for range 20000 {
		_ = MakeMountPoint(root, "/point", true) // it may fail
	}
	close(end)
	box.Wait()
	if st := statOf(t, outside); st.Mode&0o777 != 0o700 {
		t.Errorf("the directory outside has mode %o", st.Mode&0o777)
	}
	if swapped == 0 {
		t.Error("no directory was ever replaced")
	}
}
