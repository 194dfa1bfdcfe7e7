package volumes

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

const testUID, testGID = 61234, 61235

// openStore opens a Store below dir and closes it at the end of the test.
func openStore(t testing.TB, dir string) *Store {
	t.Helper()
	testutil.RequireRoot(t)
	s, err := Open(filepath.Join(dir, "data"), filepath.Join(dir, "mounts"), testUID, testGID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestTry(t *testing.T) {
	s := openStore(t, t.TempDir())
	for _, name := range []string{"a", "b", "c"} {
		start := time.Now()
		if err := s.Make(name, 64<<20, 0); err != nil {
			t.Fatal(err)
		}
		t.Log("make", time.Since(start))
		start = time.Now()
		f, err := s.Root(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Log("root", time.Since(start))
		f.Close()
		start = time.Now()
		if err := s.Release(name); err != nil {
			t.Fatal(err)
		}
		t.Log("release", time.Since(start))
		start = time.Now()
		f, err = s.Root(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Log("root after release", time.Since(start))
		os.WriteFile(filepath.Join(s.private.Name(), name, "root", "x"), make([]byte, 1<<20), 0o600)
		f.Close()
		start = time.Now()
	}
	t.Log(s.List())
	for _, size := range []int64{1 << 20, 10 << 20, 127 << 20, 129 << 20, 1 << 30, 40 << 30} {
		if err := s.Make("g", size, 0); err != nil {
			t.Fatal(err)
		}
		f, err := s.Root("g")
		if err != nil {
			t.Fatal(err)
		}
		top, _ := s.mountedTop("g")
		u, _ := measure(top)
		sb, _ := os.Stat(filepath.Join(s.dir.Name(), "g.img"))
		t.Log(size>>12, u.capacity(), u, sb.Size()>>12)
		top.Close()
		f.Close()
	}
	t.Log(s.List())
	for _, name := range []string{"a", "b", "c", "g"} {
		start := time.Now()
		if err := s.Remove(name); err != nil {
			t.Fatal(err)
		}
		t.Log("remove", time.Since(start))
	}
}
