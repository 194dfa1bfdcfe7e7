package linux

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl calls ioctl(2) on f with a pointer; op names the request in errors.
func ioctl(f *os.File, op string, request uint, arg unsafe.Pointer) error {
	err := Retry(func() error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(arg)); errno != 0 {
			return errno
		}
		return nil
	})
	return pathError(op, f, "", err)
}

// ioctlInt is ioctl for requests that take a number and may return one.
func ioctlInt(f *os.File, op string, request uint, arg uintptr) (int, error) {
	n, err := retryFd(func() (int, error) {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), arg)
		if errno != 0 {
			return -1, errno
		}
		return int(n), nil
	})
	runtime.KeepAlive(f)
	return n, pathError(op, f, "", err)
}
