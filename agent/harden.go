package agent

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// harden makes the process unreadable for its commands and installs the seccomp
// policy on all of its threads. Any failure is the end of the box.
func harden(policy []byte) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("clearing dumpable: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	if len(policy) == 0 || len(policy)%8 != 0 {
		return fmt.Errorf("installing seccomp policy of %d bytes: not whole instructions", len(policy))
	}
	prog := unix.SockFprog{
		Len:    uint16(len(policy) / 8),
		Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(policy))),
	}
	const tsync = unix.SECCOMP_FILTER_FLAG_TSYNC
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, tsync, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return os.NewSyscallError("installing seccomp policy", errno)
	}
	// seccomp(2): with TSYNC the id of a thread that could not follow is returned
	// without an error.
	if thread != 0 {
		return fmt.Errorf("installing seccomp policy: thread %d did not follow", thread)
	}
	return nil
}
