package linux

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic returns CLOCK_MONOTONIC, which is the same in all processes of a host, apart from those in a time
// namespace of their own.
func Monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail
	return time.Duration(now.Nano())
}
