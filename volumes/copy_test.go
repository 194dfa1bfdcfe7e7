package volumes

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

func mustCopy(t *testing.T, s *Store, from, name string, bytes int64) {
	t.Helper()
	if err := s.Copy(t.Context(), from, name, bytes, 0, nil); err != nil {
		t.Fatal(err)
	}
}

// noNew checks that no unfinished copy is left.
func noNew(t *testing.T, p place) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(p.data, newPrefix+"*")); err != nil || len(left) != 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

func TestCopy(t *testing.T) {
	requireLoop(t)
	p := newPlace(t)
	s := p.open(t, ByImage)
	mustMake(t, s, "a", 8<<20, 0)
	content := make([]byte, 3<<20+7)
	rand.NewChaCha8([32]byte{1}).Read(content)
	root := mustRoot(t, s, "a")
	defer root.Close() // a reader has it all the time
	asUser(t, root, func() error {
		return errors.Join(os.WriteFile("f", content, 0o640), os.Symlink("f", "link"), os.Mkdir("d", 0o711), os.Link("f", "d/g"))
	})
	var steps []int64
	if err := s.Copy(t.Context(), "a", "b", 0, 0, func(done, total int64) {
		if steps = append(steps, done); done > total {
			t.Errorf("%d of %d", done, total)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(steps) == 0 { // or the file system shares blocks
		t.Log("no progress")
	}
	same := func(name string) {
		t.Helper()
		root := mustRoot(t, s, name)
		defer root.Close()
		asUser(t, root, func() error {
			got, err := os.ReadFile("d/g")
			if !bytes.Equal(got, content) {
				t.Errorf("%s has other content: %d bytes, %v", name, len(got), err)
			}
			to, err := os.Readlink("link")
			if err != nil || to != "f" {
				t.Errorf("link: %q, %v", to, err)
			}
			return err
		})
	}
	same("b")
	// Each is on its own from now on, also after another Open, and the limit of a larger copy holds.
	asUser(t, root, func() error { return os.WriteFile("f", nil, 0o640) })
	mustCopy(t, s, "b", "c", 16<<20)
	if st := mustState(t, s, "c"); st.Bytes != 16<<20 || st.UsedBytes < int64(len(content)) || st.UsedBytes > 5<<20 {
		t.Errorf("%+v", st)
	}
	c := mustRoot(t, s, "c")
	asUser(t, c, func() error {
		n, err := fill("more")
		if n < 9<<20 || n > 13<<20 {
			t.Errorf("%d more bytes fit, %v", n, err)
		}
		return os.Remove("more")
	})
	c.Close()
	root.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = p.open(t, ByImage)
	same("b")
	same("c")
	noNew(t, p)
	for _, name := range []string{"a", "b", "c"} {
		if err := s.Remove(name); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	onlyMarker(t, p)
}

// TestCopyIsSparse: holes stay holes, so that a copy of a large volume with little in it is cheap.
func TestCopyIsSparse(t *testing.T) {
	requireLoop(t)
	p := newPlace(t)
	s := p.open(t, ByImage)
	mustMake(t, s, "a", 8<<30, 0)
	mustCopy(t, s, "a", "b", 0)
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(p.data, "b.img"), &st); err != nil || st.Size < 8<<30 || st.Blocks*512 > 64<<20 {
		t.Errorf("%d bytes in %d on disk, %v", st.Size, st.Blocks*512, err)
	}
}

func TestCopyRefused(t *testing.T) {
	requireLoop(t)
	p := newPlace(t)
	s := p.open(t, ByImage)
	mustMake(t, s, "a", 8<<20, 0)
	mustMake(t, s, "taken", 1<<20, 0)
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	for _, c := range []struct {
		ctx        context.Context
		from, name string
		bytes      int64
		want       error
		text       string
	}{
		{t.Context(), "none", "b", 0, ErrUnknown, `"none"`},
		{t.Context(), "a", "taken", 0, ErrExists, `"taken"`},
		{t.Context(), "a", "a", 0, ErrExists, `"a"`},
		{t.Context(), "a", "b", 4 << 20, ErrShrink, "8388608"},
		{t.Context(), "a", "../b", 0, nil, "volume name"},
		{t.Context(), "../a", "b", 0, nil, "volume name"},
		{t.Context(), "a", "b", MaxBytes + 1, nil, "volume bytes"},
		{canceled, "a", "b", 0, context.Cause(canceled), ""},
	} {
		err := s.Copy(c.ctx, c.from, c.name, c.bytes, 0, nil)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s to %s with %d: %v, want %v with %q", c.from, c.name, c.bytes, err, c.want, c.text)
		}
		noNew(t, p)
	}
	if states, err := s.List(); err != nil || len(states) != 2 {
		t.Errorf("%+v, %v", states, err)
	}
}

// TestCopyWrittenTo: a copy of a volume that something writes to meanwhile would be of no
// moment, so there is none. The writer may have been detached and have a file open.
func TestCopyWrittenTo(t *testing.T) {
	requireLoop(t)
	p := newPlace(t)
	s := p.open(t, ByImage)
	mustMake(t, s, "a", 64<<20, 0)
	root := mustRoot(t, s, "a")
	defer root.Close()
	asUser(t, root, func() error { return os.WriteFile("f", make([]byte, 20<<20), 0o600) })
	var file *os.File
	asUser(t, root, func() (err error) { file, err = os.OpenFile("f", os.O_RDWR, 0); return err })
	defer file.Close()
	for _, change := range []func() error{
		func() error { _, err := file.WriteAt([]byte("x"), 5); return err },
		func() error { return linux.Fallocate(file, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8<<20) },
		func() error { return file.Truncate(10 << 20) },
	} {
		once := false
		err := s.Copy(t.Context(), "a", "b", 0, 0, func(int64, int64) {
			if !once {
				once = true
				if err := change(); err != nil {
					t.Error(err)
				}
			}
		})
		if !once {
			t.Skip("this file system shares blocks, so a copy is of one moment")
		}
		if !errors.Is(err, ErrWritten) {
			t.Errorf("copied while it was written to: %v", err)
		}
		noNew(t, p)
	}
	mustCopy(t, s, "a", "b", 0)
}

// TestCopyNoRoom: what does not fit on the disk is refused before anything is copied.
func TestCopyNoRoom(t *testing.T) {
	requireLoop(t)
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=16M,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	p := place{data: filepath.Join(dir, "data"), mounts: filepath.Join(dir, "mounts")}
	s := p.open(t, ByImage)
	mustMake(t, s, "a", 64<<20, 1024)
	root := mustRoot(t, s, "a")
	asUser(t, root, func() error { return os.WriteFile("f", bytes.Repeat([]byte("x"), 9<<20), 0o600) })
	root.Close()
	err := s.Copy(t.Context(), "a", "b", 0, 0, func(int64, int64) { t.Error("it has begun") })
	if !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	noNew(t, p)
}
