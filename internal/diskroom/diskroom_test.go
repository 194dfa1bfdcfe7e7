package diskroom

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestKeep: the blocks are allocated, the file is as long as before, and after Forget they are
// allocated again.
func TestKeep(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const end = 1 << 20
	var r Room
	for range 2 {
		if err := r.Keep(f, end); err != nil {
			t.Fatal(err)
		}
		var st syscall.Stat_t
		if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		if st.Size != 0 || st.Blocks*512 < end {
			t.Errorf("%d bytes long, %d allocated, want 0 and at least %d", st.Size, st.Blocks*512, end)
		}
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
		r.Forget()
	}
	r.GiveUp()
	f.Close()
	if err := r.Keep(f, end); err != nil {
		t.Errorf("after GiveUp: %v", err)
	}
	if err := new(Room).Keep(f, end); err == nil || IsFull(err) {
		t.Errorf("a closed file: %v", err)
	}
}

func TestSpare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spare")
	const size = 64 << 10
	for range 2 { // the second keeps what there is
		KeepSpare(path, size)
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil || st.Blocks*512 < size || st.Mode&0o777 != 0o600 {
			t.Errorf("%d allocated, mode %o, %v", st.Blocks*512, st.Mode, err)
		}
	}
	GiveSpare(path)
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("after GiveSpare: %v", err)
	}
	// A symlink is not followed.
	target := filepath.Join(t.TempDir(), "target")
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	KeepSpare(path, size)
	if _, err := os.Lstat(target); !os.IsNotExist(err) {
		t.Errorf("KeepSpare wrote through a symlink: %v", err)
	}
}
