package linux

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// HungUp says that nothing will come from the other end of a stream socket any more,
// whatever has come and was not read: poll(2), POLLRDHUP. It does not wait. A socket
// that is closed counts.
func HungUp(c syscall.RawConn) bool {
	fds := []unix.PollFd{{Events: unix.POLLRDHUP}}
	var pollErr error
	err := c.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		pollErr = Retry(func() error { _, err := unix.Poll(fds, 0); return err })
	})
	return err != nil || pollErr == nil && fds[0].Revents != 0
}
