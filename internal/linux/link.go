package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// SetLinkUp brings up the network interface name in the network namespace of the
// calling thread (netdevice(7)). It resets the interface's other flags to their
// defaults, which "lo" has anyway.
func SetLinkUp(name string) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return &os.PathError{Op: "naming interface", Path: name, Err: err}
	}
	request.SetUint16(unix.IFF_UP)
	fd, err := retryFd(func() (int, error) {
		return unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	})
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := Retry(func() error { return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request) }); err != nil {
		return &os.PathError{Op: "ioctl(SIOCSIFFLAGS)", Path: name, Err: err}
	}
	return nil
}
