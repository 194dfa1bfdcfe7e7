package linux

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SeccompAllThreads permanently installs a filter, an array of struct sock_filter, on all
// threads of this process (SECCOMP_FILTER_FLAG_TSYNC). If the kernel logs seccomp actions,
// it logs the calls that the filter refuses (SECCOMP_FILTER_FLAG_LOG, Linux 4.14). The
// process must have no_new_privs set.
func SeccompAllThreads(program []byte) error {
	prog := unix.SockFprog{
		Len:    uint16(len(program) / 8),
		Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(program))),
	}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_LOG, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if thread != 0 { // seccomp(2) reports a thread that cannot be synchronised without an errno
		return fmt.Errorf("seccomp: thread %d has another filter", thread)
	}
	return nil
}
