package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

var ctx = context.Background()

func open(t *testing.T) *Store {
	s, err := Open(filepath.Join(t.TempDir(), "spaces"))
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fill makes a tree of all that a box can leave behind.
func fill(t *testing.T, dir string) {
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o000))
	must(t, os.Symlink("/", filepath.Join(dir, "root")))
	must(t, os.Symlink("..", filepath.Join(dir, "up")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "-rf\n\xff"), nil, 0o600))
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/c"), nil, 0o600))
	must(t, os.Symlink("b", filepath.Join(dir, "a/link")))
	must(t, os.Chmod(filepath.Join(dir, "a/b"), 0o000))
	must(t, os.Chmod(filepath.Join(dir, "a"), 0o500))
}

func TestDelete(t *testing.T) {
	s := open(t)
	must(t, s.Make("t", "a"))
	must(t, s.Make("t", "a")) // leaves it
	must(t, s.Make("t", "b"))
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.Symlink(outside, filepath.Join(s.Path("t", "a"), "out")))
	fill(t, s.Path("t", "a"))
	must(t, os.Chmod(s.Path("t", "a"), 0o000))
	must(t, s.Delete(ctx, "t", "a"))
	if _, err := os.Lstat(s.Path("t", "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Stat(s.Path("t", "b")); err != nil {
		t.Errorf("another one: %v", err)
	}
	if st, err := os.Stat(outside); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("what a symlink names was touched: %v, %v", st, err)
	}
	empty(t, s)
	must(t, s.Delete(ctx, "t", "a")) // no error
	must(t, s.Delete(ctx, "nobody", "a"))
	must(t, s.Delete(ctx, "t", "b"))
	if left, _ := os.ReadDir(s.Root()); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

func empty(t *testing.T, s *Store) {
	t.Helper()
	if left, err := os.ReadDir(filepath.Join(s.Root(), trashName)); err != nil || len(left) != 0 {
		t.Errorf("trash: %v, %v", left, err)
	}
}

// A tree that is deeper than descriptors and paths reach.
func TestDeleteOfADeepTree(t *testing.T) {
	s := open(t)
	must(t, s.Make("t", "a"))
	dir, err := os.Open(s.Path("t", "a"))
	must(t, err)
	const name = "dddddddddddddddddddddddddddddddd"
	for i := range 3000 {
		must(t, unix.Mkdirat(int(dir.Fd()), name, 0o700))
		must(t, os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/file", dir.Fd()), nil, 0o600))
		next, err := openDir(dir, name)
		must(t, err)
		if i%100 == 50 {
			must(t, dir.Chmod(0o500))
		}
		dir.Close()
		dir = next
	}
	dir.Close()
	usage, err := s.Measure(ctx, "t", "a")
	if err != nil || usage.Complete || usage.Entries < maxDepth {
		t.Errorf("measured %+v, %v", usage, err)
	}
	must(t, s.Delete(ctx, "t", "a"))
	empty(t, s)
}

func TestDeleteIsCutOffAndSwept(t *testing.T) {
	s := open(t)
	must(t, s.Make("t", "a"))
	fill(t, s.Path("t", "a"))
	cut, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Delete(cut, "t", "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Lstat(s.Path("t", "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its place is not free: %v", err)
	}
	must(t, s.Sweep(ctx))
	empty(t, s)
}

// The place of a workspace, or of a tenant, must not be a way out.
func TestSymlinksInPlaceOfDirectories(t *testing.T) {
	s := open(t)
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "file"), nil, 0o600))
	must(t, os.Symlink(outside, filepath.Join(s.Root(), "t")))
	if err := s.Make("t", "a"); err == nil {
		t.Error("a workspace was made behind a symlink")
	}
	if err := s.Delete(ctx, "t", "file"); err == nil {
		t.Error("something was deleted behind a symlink")
	}
	must(t, s.Make("u", "b"))
	must(t, os.Symlink(outside, s.Path("u", "a")))
	if err := s.Make("u", "a"); err == nil {
		t.Error("a symlink is a workspace")
	}
	must(t, s.Delete(ctx, "u", "a")) // of the symlink
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Error(err)
	}
}

func TestMeasure(t *testing.T) {
	s := open(t)
	if usage, err := s.Measure(ctx, "t", "a"); err != nil || usage != (Usage{Complete: true}) {
		t.Errorf("nothing: %+v, %v", usage, err)
	}
	must(t, s.Make("t", "a"))
	dir := s.Path("t", "a")
	must(t, os.WriteFile(filepath.Join(dir, "full"), bytes.Repeat([]byte("x"), 1<<20), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "hole"), nil, 0o600))
	must(t, os.Truncate(filepath.Join(dir, "hole"), 1<<30))
	must(t, os.Symlink("/usr", filepath.Join(dir, "link")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "sub/more"), bytes.Repeat([]byte("x"), 64<<10), 0o600))
	usage, err := s.Measure(ctx, "t", "a")
	if err != nil || !usage.Complete || usage.Entries != 6 || usage.Bytes < 1<<20+64<<10 || usage.Bytes > 2<<20 {
		t.Errorf("measured %+v, %v", usage, err)
	}
}

func TestEncode(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"", "%", "a", "A", ".a", "a.", "..", ".", "%2E", "a/b", "a%2Fb", "a\x00", "é", "a:b", strings.Repeat("x", 128)} {
		got := encode(name)
		if other, twice := seen[got]; twice {
			t.Errorf("%q and %q are both %q", name, other, got)
		}
		seen[got] = name
		if strings.ContainsAny(got, "/\x00") || got == "" || got[0] == '.' {
			t.Errorf("%q becomes %q", name, got)
		}
	}
}

// A tenant's last workspace goes while the next one comes.
func TestMakeAndDeleteAtOnce(t *testing.T) {
	s := open(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			id := fmt.Sprint(i)
			for range 200 {
				if err := s.Make("t", id); err != nil {
					t.Error(err)
					return
				}
				if err := s.Delete(ctx, "t", id); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	empty(t, s)
}

func TestMeasureWhileItChanges(t *testing.T) {
	s := open(t)
	must(t, s.Make("t", "a"))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			p := filepath.Join(s.Path("t", "a"), fmt.Sprint(i%10))
			if i%3 == 0 {
				os.Symlink("/", p)
			} else {
				os.MkdirAll(filepath.Join(p, "x"), 0o700)
			}
			os.RemoveAll(p)
		}
	})
	until := time.Now().Add(200 * time.Millisecond)
	for time.Now().Before(until) {
		// A name that is made again while a directory is read may be seen twice.
		if usage, err := s.Measure(ctx, "t", "a"); err != nil || usage.Bytes > 1<<20 {
			t.Errorf("%+v, %v", usage, err)
		}
	}
	close(stop)
	wg.Wait()
}
