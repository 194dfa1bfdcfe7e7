package linux

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// PidfdOpen returns a descriptor of process pid (Linux 5.3), owned by the caller.
func PidfdOpen(pid int) (*os.File, error) {
	fd, err := retryFd(func() (int, error) { return unix.PidfdOpen(pid, 0) })
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// PidfdSignal sends sig to the process behind pidfd. A process that has already
// ended gives ESRCH.
func PidfdSignal(pidfd *os.File, sig unix.Signal) error {
	err := Retry(func() error { return unix.PidfdSendSignal(int(pidfd.Fd()), sig, nil, 0) })
	runtime.KeepAlive(pidfd)
	return os.NewSyscallError("pidfd_send_signal", err)
}
