package linux

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// AwaitChild waits until a child of this process has ended, or was stopped while this process
// traces it, and returns its number. The child is not reaped, so no other process gets that number
// before wait4(2) has taken its status. Without children it fails with ECHILD.
func AwaitChild() (pid int, err error) {
	var info unix.Siginfo
	if err := Retry(func() error { return unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil) }); err != nil {
		return 0, err
	}
	const offset = 16 // of si_pid in the siginfo_t of 64-bit kernels
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), offset))), nil
}
