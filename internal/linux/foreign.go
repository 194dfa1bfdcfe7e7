package linux

import "golang.org/x/sys/unix"

// CloseForeign closes descriptors that an untrusted peer has sent, without waiting. The last
// close of a socket can take hours (SO_LINGER in socket(7)), as can the last close of a Unix
// socket through which such a descriptor is in transit, or of a file on a FUSE mount.
func CloseForeign(fds []int) {
	if len(fds) == 0 {
		return
	}
	for _, fd := range fds {
		// With 0 seconds, close discards unsent data. This fails for anything but a socket.
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	go func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
}
