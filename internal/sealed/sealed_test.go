package sealed

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSealWaits: seal waits if a memfd cannot be sealed yet. A shared mapping causes EBUSY, like
// pages that the kernel still holds.
func TestSealWaits(t *testing.T) {
	fd, err := Memfd("test")
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != unix.EBUSY {
		t.Errorf("sealing with a mapping: %v, want EBUSY", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = unix.Munmap(mem) })
	if err := seal(f, unix.F_SEAL_WRITE); err != nil {
		t.Error(err)
	}
}

// TestBegin: Copy returns the copy that Begin has made of the same file in the same state, and of nothing else.
func TestBegin(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "program"), filepath.Join(dir, "other")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what, begin, name string
		meanwhile         func()
		early             bool
	}{
		{"the same file", path, "name", func() {}, true},
		{"a file that was replaced", path, "name", func() {
			write(path+".new", "one")
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"a file that was changed", path, "name", func() { write(path, "longer") }, false},
		{"a file whose time was changed", path, "name", func() {
			if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"another name", path, "different", func() {}, false},
		{"another file", other, "name", func() {}, false},
		{"no file", path + ".none", "name", func() {}, false},
	} {
		write(path, "one")
		write(other, "another")
		Begin(c.begin, c.name)
		b := begun.Load()
		Begin(other, "not begun beside the first")
		<-b.done
		c.meanwhile()
		src, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Copy(src, "name")
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		got := make([]byte, 100)
		n, _ := f.ReadAt(got, 0)
		if string(got[:n]) != string(want) || (f == b.file) != c.early {
			t.Errorf("%s: %q, want %q; the copy that was begun: %v", c.what, got[:n], want, f == b.file)
		}
		if _, err := unix.Write(int(f.Fd()), []byte("x")); err != unix.EPERM {
			t.Errorf("%s: writing to the copy: %v", c.what, err)
		}
		second, err := Copy(src, "name")
		if err != nil || begun.Load() != nil {
			t.Errorf("%s: a second copy: %v, %v", c.what, err, begun.Load())
		}
		second.Close()
		src.Close()
		f.Close()
		if b.file != nil && !c.early && b.file.Fd() != ^uintptr(0) {
			t.Errorf("%s: the copy that was begun is still there", c.what)
		}
	}
}

// TestBeginWaits: Copy waits for a copy that is being made.
func TestBeginWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	want := bytes.Repeat([]byte("program"), 4<<20)
	if err := os.WriteFile(path, want, 0o700); err != nil {
		t.Fatal(err)
	}
	src, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	Begin(path, "name")
	b := begun.Load()
	f, err := Copy(src, "name")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, len(want)+1)
	if n, _ := f.ReadAt(got, 0); f != b.file || !bytes.Equal(got[:n], want) {
		t.Errorf("%d bytes, want %d; the copy that was begun: %v", n, len(want), f == b.file)
	}
}

func TestProbe(t *testing.T) {
	if err := Probe(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}
