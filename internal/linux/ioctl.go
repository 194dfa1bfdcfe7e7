package linux

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl calls ioctl(2) on f with a pointer. op names the request in errors.
func ioctl(f *os.File, op string, request uint, arg unsafe.Pointer) error {
	err := Retry(func() error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(arg))
		return errnoError(errno)
	})
	return pathError(op, f, "", err)
}

// ioctlInt is ioctl for requests that take a number and return one.
func ioctlInt(f *os.File, op string, request uint, arg uintptr) (int, error) {
	n, err := retryFd(func() (int, error) {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), arg)
		return int(n), errnoError(errno)
	})
	return n, pathError(op, f, "", err)
}
