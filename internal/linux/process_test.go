package linux

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStartTime(t *testing.T) {
	mine, err := StartTime(os.Getpid())
	if err != nil || mine == 0 {
		t.Errorf("start time %d, %v", mine, err)
	}
	if first, err := StartTime(1); err != nil || first >= mine {
		t.Errorf("process 1 started at %d, %v, this one at %d", first, err, mine)
	}
	if _, err := StartTime(1 << 30); err == nil {
		t.Error("a process that cannot be has a start time")
	}
}

// TestDiskWrites: writes to an unlinked file count, on a file system with writeback, until the
// file is truncated.
func TestDiskWrites(t *testing.T) {
	var st unix.Statfs_t
	dir := t.TempDir()
	if err := unix.Statfs(dir, &st); err != nil || st.Type == unix.TMPFS_MAGIC {
		t.Skipf("%s is a tmpfs (%v): the kernel counts nothing there", dir, err)
	}
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	before, err := DiskWrites(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const size = 8 << 20
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if after, err := DiskWrites(os.Getpid()); err != nil || after-before < size {
		t.Errorf("%d bytes, %v, must be at least %d", after-before, err, size)
	}
	if _, err := DiskWrites(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that cannot be: %v", err)
	}
}
