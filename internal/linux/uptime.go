package linux

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Uptime returns the time since the host was started, including time in suspend.
func Uptime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(t.Nano()), nil
}
