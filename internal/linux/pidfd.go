package linux

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// PidfdOpen returns a descriptor of process pid (Linux 5.3). The caller owns it.
func PidfdOpen(pid int) (*os.File, error) {
	fd, err := retryFd(func() (int, error) { return unix.PidfdOpen(pid, 0) })
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil // pidfd_open(2) sets close-on-exec
}

// PidfdSignal sends sig to the process behind pidfd. It fails with ESRCH if the process
// has exited.
func PidfdSignal(pidfd *os.File, sig unix.Signal) error {
	err := Retry(func() error { return unix.PidfdSendSignal(int(pidfd.Fd()), sig, nil, 0) })
	runtime.KeepAlive(pidfd)
	return os.NewSyscallError("pidfd_send_signal", err)
}

// AwaitExit returns nil when the process behind pidfd has exited, and an error if
// pidfd is closed before that. It waits in the runtime's poller, so the descriptor must
// have been non-blocking when the os.File was created.
func AwaitExit(pidfd *os.File) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var perr error
	err = raw.Read(func(fd uintptr) bool {
		var ended bool
		ended, perr = pollExit(int(fd), 0)
		return ended || perr != nil
	})
	return errors.Join(err, perr)
}

// HasExited waits until the process behind pidfd exits, but at most patience, in whole
// milliseconds. It blocks a thread.
func HasExited(pidfd *os.File, patience time.Duration) (bool, error) {
	defer runtime.KeepAlive(pidfd)
	return pollExit(int(pidfd.Fd()), int(patience.Milliseconds()))
}

// pollExit reports whether a process has exited: its pidfd is then readable
// (pidfd_open(2)).
func pollExit(fd, milliseconds int) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	err := Retry(func() error {
		_, err := unix.Poll(fds, milliseconds)
		return err
	})
	return fds[0].Revents != 0, os.NewSyscallError("poll", err)
}

// PidfdPID returns the PID of the process behind a pidfd. It is 0 if the process was reaped, or
// is in a PID namespace that this process cannot see (proc_pid_fdinfo(5)).
func PidfdPID(pidfd *os.File) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd.Fd()))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid, _ := strconv.Atoi(strings.TrimSpace(value))
			return max(pid, 0)
		}
	}
	return 0
}
