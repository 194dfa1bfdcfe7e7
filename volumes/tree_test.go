package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// hostDir creates and opens a directory of the user.
func hostDir(t *testing.T, path string) *os.File {
	t.Helper()
	if err := errors.Join(os.MkdirAll(path, 0o700), os.Chown(path, testUID, testGID)); err != nil {
		t.Fatal(err)
	}
	f, err := linux.Openat2(nil, path, unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func mustLimit(t *testing.T, s *Store, dir *os.File, bytes, inodes int64) {
	t.Helper()
	if err := s.LimitTree(dir, bytes, inodes); err != nil {
		t.Fatal(err)
	}
}

func projectOfPath(t *testing.T, path string) uint32 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a, err := linux.GetFileAttr(f)
	if err != nil {
		t.Fatal(err)
	}
	return a.Project
}

func TestNoQuota(t *testing.T) {
	testutil.RequireRoot(t)
	s := openStore(t, ByImage)
	dir, err := os.Open("/proc/self") // has none anywhere
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := s.LimitTree(dir, 1<<20, 0); !errors.Is(err, ErrNoQuota) {
		t.Errorf("%v", err)
	}
	if err := s.LimitTree(dir, 0, 0); err != nil {
		t.Errorf("taking away what there is not: %v", err)
	}
	if _, ok, err := LimitOf(dir); ok || err != nil {
		t.Error(ok, err)
	}
	for _, limit := range [][2]int64{{-1, 0}, {0, -1}, {MaxBytes + 1, 0}, {0, MaxInodes + 1}} {
		if err := s.LimitTree(dir, limit[0], limit[1]); err == nil || errors.Is(err, ErrNoQuota) {
			t.Errorf("%v: %v", limit, err)
		}
	}
}

func TestLimitTree(t *testing.T) {
	requireQuota(t)
	s := openStore(t, ByProjectQuota)
	top := t.TempDir()
	os.Chmod(top, 0o755)
	dir := hostDir(t, filepath.Join(top, "limited"))
	outside := hostDir(t, filepath.Join(top, "outside"))
	asUser(t, dir, func() error {
		return errors.Join(os.MkdirAll("a/b", 0o700), os.WriteFile("a/b/f", make([]byte, 1<<20), 0o600),
			os.Link("a/b/f", "link"), os.Symlink("../outside", "symlink"), unix.Mkfifo("fifo", 0o600), os.WriteFile("sealed", nil, 0))
	})
	if _, ok, err := LimitOf(dir); ok || err != nil {
		t.Error(ok, err)
	}
	mustLimit(t, s, dir, 4<<20, 20)
	soon(func() bool { st, _, _ := LimitOf(dir); return st.UsedInodes == 5 })
	st, ok, err := LimitOf(dir)
	if !ok || err != nil || st.Bytes != 4<<20 || st.Inodes != 20 || st.UsedBytes < 1<<20 || st.UsedInodes != 5 || st.By != ByProjectQuota {
		t.Errorf("%+v, %v, %v", st, ok, err)
	}
	if projectOfPath(t, outside.Name()) != 0 {
		t.Error("a symlink was followed")
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil || int64(fs.Blocks)*fs.Bsize != 4<<20 || fs.Files != 20 {
		t.Errorf("statfs %+v, %v", fs, err)
	}
	asUser(t, dir, func() error {
		if n, err := fill("a/b/f2"); n > 3<<20 || n < 2<<20 || !isFull(err) {
			t.Errorf("%d more bytes, then %v", n, err)
		}
		if f, err := os.OpenFile("a/b/f", os.O_APPEND|os.O_WRONLY, 0); err == nil { // was there before
			if _, err := f.Write(make([]byte, 1<<20)); !isFull(errors.Join(err, f.Sync())) {
				t.Errorf("an old file can grow: %v", err)
			}
			f.Close()
		} else {
			t.Error(err)
		}
		os.Remove("a/b/f2")
		if n, err := crowd("a/n"); n > 16 || !isFull(err) {
			t.Errorf("%d more files, then %v", n, err)
		}
		return nil
	})
	asUser(t, outside, func() error {
		n, err := fill("f")
		os.Remove("f")
		if n < 1<<30 {
			return fmt.Errorf("outside only %d bytes: %w", n, err)
		}
		return nil
	})
	t.Run("border", func(t *testing.T) {
		asUser(t, outside, func() error {
			if err := os.WriteFile("x", nil, 0o600); err != nil {
				return err
			}
			if err := os.Link("x", "../limited/x"); !errors.Is(err, unix.EXDEV) {
				t.Errorf("a hard link from outside: %v", err)
			}
			if err := os.Rename("x", "../limited/x"); !errors.Is(err, unix.EXDEV) {
				t.Errorf("a rename from outside: %v", err)
			}
			if err := os.Link("../limited/sealed", "y"); err == nil {
				// It still counts there.
				if err := os.Remove("y"); err != nil {
					return err
				}
			}
			return nil
		})
	})
	t.Run("nested", func(t *testing.T) {
		inner := hostDir(t, filepath.Join(top, "limited/a/b"))
		if err := s.LimitTree(inner, 1<<20, 0); err == nil || !strings.Contains(err.Error(), "limited") {
			t.Errorf("%v", err)
		}
		if err := s.LimitTree(inner, 0, 0); err == nil {
			t.Error("the limit of all was taken away from inside")
		}
		if st, ok, err := LimitOf(inner); !ok || st.Bytes != 4<<20 || err != nil {
			t.Error(st, ok, err)
		}
		above, err := os.Open(top)
		if err != nil {
			t.Fatal(err)
		}
		defer above.Close()
		if err := s.LimitTree(above, 8<<20, 0); err == nil || !strings.Contains(err.Error(), "another project") {
			t.Errorf("%v", err)
		}
		if a, err := linux.GetFileAttr(above); a.Project != 0 || err != nil {
			t.Errorf("left in project %d", a.Project)
		}
	})
	mustLimit(t, s, dir, 0, 100)
	if st, ok, err := LimitOf(dir); st.Bytes != 0 || st.Inodes != 100 || !ok || err != nil {
		t.Errorf("%+v, %v", st, err)
	}
	id := projectOfPath(t, dir.Name())
	mustLimit(t, s, dir, 0, 0)
	mustLimit(t, s, dir, 0, 0)
	for _, name := range []string{"", "a", "a/b/f", "sealed", "a/n0"} {
		if got := projectOfPath(t, filepath.Join(dir.Name(), name)); got != 0 {
			t.Errorf("%q is still in project %d", name, got)
		}
	}
	if q, err := linux.GetProjectQuota(outside2(t, top), id); q != (linux.ProjectQuota{}) || err != nil {
		t.Errorf("left %+v, %v", q, err)
	}
	onlyMarkerIn(t, s)
}

func outside2(t *testing.T, path string) *os.File {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func onlyMarkerIn(t *testing.T, s *Store) {
	t.Helper()
	names, err := linux.ReadNames(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if name != markerName && name != trashName {
			t.Errorf("left: %s", name)
		}
	}
}

// TestLimitTreeTwo: every tree and every volume has its own project.
func TestLimitTreeTwo(t *testing.T) {
	requireQuota(t)
	s := openStore(t, ByProjectQuota)
	seen := map[uint32]string{}
	note := func(path string) {
		id := projectOfPath(t, path)
		if !inRange(id) || seen[id] != "" {
			t.Errorf("%s has project %d, as %q", path, id, seen[id])
		}
		seen[id] = path
	}
	for i := range 20 {
		dir := hostDir(t, filepath.Join(t.TempDir(), "x"))
		mustLimit(t, s, dir, 1<<20, 0)
		note(dir.Name())
		name := fmt.Sprint("v", i)
		mustMake(t, s, name, 1<<20, 0)
		note(filepath.Join(s.dir.Name(), name+dirSuffix))
	}
}

// TestLimitTreeLost: records and directories that are gone.
func TestLimitTreeLost(t *testing.T) {
	requireQuota(t)
	p := newPlace(t)
	s := p.open(t, ByProjectQuota)
	top := t.TempDir()
	dir := hostDir(t, filepath.Join(top, "a"))
	mustLimit(t, s, dir, 2<<20, 0)
	id := projectOfPath(t, dir.Name())
	record := filepath.Join(p.data, idText(id)+treeSuffix)
	for _, lose := range []func() error{
		func() error { return os.Remove(record) },
		func() error { return os.WriteFile(record, nil, 0o600) },
		func() error { return os.WriteFile(record, []byte("{"), 0o600) },
	} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		s = p.open(t, ByProjectQuota)
		mustLimit(t, s, dir, 3<<20, 0)
		if got := projectOfPath(t, dir.Name()); got != id {
			t.Errorf("project %d became %d", id, got)
		}
		if _, err := os.Stat(record); err != nil {
			t.Error(err)
		}
	}
	// As if killed during the walk.
	asUser(t, dir, func() error { return os.WriteFile("f", make([]byte, 1<<20), 0o600) })
	f, err := os.OpenFile(filepath.Join(dir.Name(), "f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := setProject(f, 0, false); err != nil {
		t.Fatal(err)
	}
	f.Close()
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(record, []byte(strings.Replace(string(text), `"walking":false`, `"walking":true`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	mustLimit(t, s, dir, 3<<20, 0)
	if got := projectOfPath(t, filepath.Join(dir.Name(), "f")); got != id {
		t.Errorf("the walk did not go on: project %d", got)
	}
	// The operator deletes everything.
	dir.Close()
	if err := os.RemoveAll(filepath.Join(top, "a")); err != nil {
		t.Fatal(err)
	}
	next := hostDir(t, filepath.Join(top, "b"))
	mustLimit(t, s, next, 1<<20, 0)
	if _, err := os.Stat(record); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record stays: %v", err)
	}
}

// TestLimitTreeForeign: other people's projects are left alone.
func TestLimitTreeForeign(t *testing.T) {
	requireQuota(t)
	s := openStore(t, ByProjectQuota)
	top := t.TempDir()
	dir := hostDir(t, filepath.Join(top, "a"))
	hostDir(t, filepath.Join(top, "a/b/theirs"))
	theirs, err := os.Open(filepath.Join(top, "a/b/theirs"))
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if err := setProject(theirs, 4242, true); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*os.File{dir, theirs} {
		if err := s.LimitTree(d, 1<<20, 0); err == nil || !strings.Contains(err.Error(), "project 4242") {
			t.Errorf("%v", err)
		}
	}
	for path, want := range map[string]uint32{"a": 0, "a/b": 0, "a/b/theirs": 4242} {
		if got := projectOfPath(t, filepath.Join(top, path)); got != want {
			t.Errorf("%s is in project %d", path, got)
		}
	}
	onlyMarkerIn(t, s)
	mustMake(t, s, "v", 1<<20, 0)
	if err := s.LimitTree(mustRoot(t, s, "v"), 1<<20, 0); err == nil {
		t.Error("a volume was limited as a directory")
	}
}

// TestLimitTreeDeep: neither a deep tree nor one that is being moved can leave half a project
// behind.
func TestLimitTreeDeep(t *testing.T) {
	requireQuota(t)
	s := openStore(t, ByProjectQuota)
	dir := hostDir(t, filepath.Join(t.TempDir(), "a"))
	asUser(t, dir, func() error {
		for range maxDepth + 10 {
			if err := errors.Join(os.Mkdir("d", 0o700), unix.Chdir("d")); err != nil {
				return err
			}
		}
		return nil
	})
	if err := s.LimitTree(dir, 1<<20, 0); err == nil || !strings.Contains(err.Error(), "levels") {
		t.Errorf("%v", err)
	}
	if got := projectOfPath(t, dir.Name()); got != 0 {
		t.Errorf("left in project %d", got)
	}
	onlyMarkerIn(t, s)
}

// TestLimitTreeRace: during the walk, others move directories, create files and swap them for
// symlinks and FIFOs. In the end everything is in the project.
func TestLimitTreeRace(t *testing.T) {
	requireQuota(t)
	s := openStore(t, ByProjectQuota)
	top := t.TempDir()
	os.Chmod(top, 0o755)
	dir := hostDir(t, filepath.Join(top, "a"))
	outside := filepath.Join(top, "secret")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	asUser(t, dir, func() error {
		for i := range 100 {
			if err := os.MkdirAll(fmt.Sprintf("%d/x/y", i), 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(fmt.Sprintf("%d/x/y/f", i), nil, 0o600); err != nil {
				return err
			}
		}
		return nil
	})
	done, stopped := make(chan struct{}), make(chan error)
	go func() {
		stopped <- tryAsUser(dir, func() error {
			for i := 0; ; i++ {
				select {
				case <-done:
					return nil
				default:
				}
				a, b := i%100, (i*7+3)%100
				os.Rename(fmt.Sprintf("%d/x", a), fmt.Sprintf("%d/x%d", b, a))
				os.Rename(fmt.Sprintf("%d/x%d", b, a), fmt.Sprintf("%d/x", a))
				os.WriteFile(fmt.Sprintf("%d/x/new", a), nil, 0o600)
				os.Remove(fmt.Sprintf("%d/x/new", a))
				os.Symlink(outside, fmt.Sprintf("%d/x/new", a))
				os.Remove(fmt.Sprintf("%d/x/new", a))
				unix.Mkfifo(fmt.Sprintf("%d/x/new", a), 0o600)
				os.Remove(fmt.Sprintf("%d/x/new", a))
			}
		})
	}()
	mustLimit(t, s, dir, 64<<20, 5000)
	close(done)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	id := projectOfPath(t, dir.Name())
	err := filepath.WalkDir(dir.Name(), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() || d.Type().IsRegular() {
			if got := projectOfPath(t, path); got != id {
				t.Errorf("%s is in project %d", path, got)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if projectOfPath(t, outside) != 0 {
		t.Error("a symlink was followed")
	}
}

// TestLimitTreeMounts: mounts in the tree do not belong to it.
func TestLimitTreeMounts(t *testing.T) {
	requireQuota(t)
	s := openStore(t, ByProjectQuota)
	top := t.TempDir()
	dir := hostDir(t, filepath.Join(top, "a"))
	hostDir(t, filepath.Join(top, "a/point"))
	hostDir(t, filepath.Join(top, "other"))
	if err := unix.Mount(filepath.Join(top, "other"), filepath.Join(top, "a/point"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(filepath.Join(top, "a/point"), unix.MNT_DETACH)
	mustLimit(t, s, dir, 1<<20, 0)
	if got := projectOfPath(t, filepath.Join(top, "other")); got != 0 {
		t.Errorf("what is mounted in the tree is in project %d", got)
	}
}
