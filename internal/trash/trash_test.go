package trash

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestDiscard: a tree is gone however deep it is, with few descriptors, and what its symlinks
// lead to stays.
func TestDiscard(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/kept", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := open(t, t.TempDir())
	for _, err := range []error{
		os.MkdirAll(dir.Name()+"/tree/a/b/c", 0o755), os.MkdirAll(dir.Name()+"/trash", 0o700), os.Symlink(outside, dir.Name()+"/tree/a/link"),
		os.Symlink("..", dir.Name()+"/tree/a/b/up"), unix.Mkfifo(dir.Name()+"/tree/a/fifo", 0o600), os.WriteFile(dir.Name()+"/tree/f", nil, 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	at := int(open(t, dir.Name()+"/tree").Fd())
	fds := []int{}
	for range 2000 { // deeper than a path can be
		if err := unix.Mkdirat(at, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if at, fds = fd, append(fds, fd); len(fds) > 1 {
			unix.Close(fds[len(fds)-2])
		}
	}
	unix.Close(at)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	trash := open(t, dir.Name()+"/trash")
	few := limit
	few.Cur = uint64(trash.Fd()) + 8
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	moved, err := Move(dir, "tree", trash)
	if err == nil {
		err = Discard(trash, moved, nil)
	}
	if err := errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(trash.Name()); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(outside + "/kept"); err != nil {
		t.Error(err)
	}
}

// TestDiscardStops: closing stop ends a deletion, and another one finishes it.
func TestDiscardStops(t *testing.T) {
	trash := open(t, t.TempDir())
	if err := os.MkdirAll(trash.Name()+"/tree/a/b", 0o755); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	close(stop)
	if err := Discard(trash, "tree", stop); !errors.Is(err, ErrStopped) {
		t.Errorf("%v", err)
	}
	Empty(trash, nil, func(name string) error { return Discard(trash, name, nil) })
	if left, err := os.ReadDir(trash.Name()); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestDiscardTogether: several processes can empty one trash, while a tree is still written.
func TestDiscardTogether(t *testing.T) {
	trash := open(t, t.TempDir())
	tree := filepath.Join(trash.Name(), "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	inside := open(t, tree)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
			fd := int(inside.Fd())
			if err := unix.Mkdirat(fd, "d", 0o755); err == unix.ENOENT {
				return // it is deleted
			}
			_ = unix.Mkdirat(fd, "d/e", 0o755)
		}
		close(stop)
	})
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = Discard(trash, "tree", stop) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, ErrStopped) && !errors.Is(err, unix.ENOTEMPTY) {
			t.Error(err)
		}
	}
	for range 2 {
		Empty(trash, nil, func(name string) error { return Discard(trash, name, nil) })
	}
	if left, err := os.ReadDir(trash.Name()); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
