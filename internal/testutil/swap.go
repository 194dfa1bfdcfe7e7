package testutil

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Swap gives the test machine a swap area of size bytes until t ends, and reports whether it did: swap belongs to a
// whole host, so only the virtual machine of the tests gets one.
func Swap(t testing.TB, size int) bool {
	t.Helper()
	if os.Getenv("BOXD_TEST_VM") == "" {
		return false
	}
	page := os.Getpagesize()
	// union swap_header in the kernel's include/linux/swap.h.
	header := make([]byte, page)
	binary.NativeEndian.PutUint32(header[1024:], 1)                   // version
	binary.NativeEndian.PutUint32(header[1028:], uint32(size/page-1)) // last_page
	copy(header[page-10:], "SWAPSPACE2")
	path := filepath.Join(t.TempDir(), "swap")
	// The kernel refuses holes.
	if err := os.WriteFile(path, append(header, make([]byte, size-page)...), 0o600); err != nil {
		t.Fatal(err)
	}
	name, err := unix.BytePtrFromString(path)
	if err == nil {
		if _, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
			err = errno
		}
	}
	if err != nil {
		t.Fatalf("turning swap on: %v", err)
	}
	t.Cleanup(func() {
		if _, _, errno := unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
			t.Error(errors.Join(errors.New("turning swap off"), errno))
		}
	})
	return true
}
