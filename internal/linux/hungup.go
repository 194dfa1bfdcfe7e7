package linux

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// HungUp reports, without waiting, whether the other end of a stream socket will send
// nothing more (POLLRDHUP in poll(2)), even if there is unread data. A socket that is
// closed at this end counts as well.
func HungUp(c syscall.RawConn) bool {
	fds := []unix.PollFd{{Events: unix.POLLRDHUP}}
	var pollErr error
	err := c.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		pollErr = Retry(func() error { _, err := unix.Poll(fds, 0); return err })
	})
	return err != nil || pollErr == nil && fds[0].Revents != 0
}
