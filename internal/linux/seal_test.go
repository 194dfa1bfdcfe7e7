package linux

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSealWaits: seal waits if a memfd cannot be sealed yet. A shared mapping causes EBUSY, like
// pages that the kernel still holds.
func TestSealWaits(t *testing.T) {
	fd, err := execMemfd("test")
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
