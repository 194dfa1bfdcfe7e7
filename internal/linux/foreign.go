package linux

import "golang.org/x/sys/unix"

// CloseForeign closes descriptors that a peer without trust has handed over. It does not wait:
// the last close of a socket can take hours (SO_LINGER in socket(7)), and so can that of a Unix
// socket that such a descriptor is on its way through, or of a file in a FUSE mount.
func CloseForeign(fds []int) {
	if len(fds) == 0 {
		return
	}
	for _, fd := range fds {
		// With 0 seconds a close drops what is unsent. It fails for all but sockets.
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	go func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
}
