package linux

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// FileTime returns a time that is between the times of all files changed before the call and
// those of all files changed afterwards. Files have the time of the kernel's last clock tick
// or, since Linux 6.13, one between that and the true time. So FileTime waits until the tick
// has reached the true time of the call: about 4 ms, 10 ms where the kernel has 100 ticks a
// second.
func FileTime() (time.Time, error) {
	for {
		now, err := readClock(unix.CLOCK_REALTIME)
		if err != nil {
			return now, err
		}
		// Somebody may set the clock back meanwhile.
		for deadline := time.Now().Add(100 * time.Millisecond); time.Now().Before(deadline); time.Sleep(500 * time.Microsecond) {
			if tick, err := readClock(unix.CLOCK_REALTIME_COARSE); err != nil || !tick.Before(now) {
				return now, err
			}
		}
	}
}

func readClock(clock int32) (time.Time, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return time.Time{}, os.NewSyscallError("clock_gettime", err)
	}
	return time.Unix(ts.Unix()), nil
}
