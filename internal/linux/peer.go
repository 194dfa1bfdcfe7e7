package linux

import (
	"errors"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a Unix socket, at the time of connecting.
type Peer struct {
	PID      int // in this process's PID namespace; 0 if the peer is outside of it
	UID, GID int
	Groups   []int // supplementary groups; nil if unknown
}

// PeerOf returns the process that connected c: SO_PEERCRED and, since Linux 4.13,
// SO_PEERGROUPS (unix(7)).
func PeerOf(c *net.UnixConn) (Peer, error) {
	var p Peer
	err := control(c, func(fd uintptr) error {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return os.NewSyscallError("getsockopt", err)
		}
		p = Peer{PID: int(cred.Pid), UID: int(cred.Uid), GID: int(cred.Gid), Groups: peerGroups(fd)}
		return nil
	})
	return p, err
}

// control calls fn with the descriptor of c, which stays valid until fn returns.
func control(c syscall.Conn, fn func(fd uintptr) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var fnErr error
	if err := raw.Control(func(fd uintptr) { fnErr = fn(fd) }); err != nil {
		return err
	}
	return fnErr
}

// peerGroups asks at most twice: after the first attempt, the kernel says how much room
// it needs.
func peerGroups(fd uintptr) []int {
	gids := make([]uint32, 32)
	for range 2 {
		size := uint32(len(gids) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(gids))), uintptr(unsafe.Pointer(&size)), 0)
		if errno == unix.ERANGE {
			gids = make([]uint32, size/4)
			continue
		}
		if errno != 0 {
			return nil
		}
		groups := make([]int, size/4)
		for i := range groups {
			groups[i] = int(gids[i])
		}
		return groups
	}
	return nil
}

// PeerProcess returns a pidfd of the process that connected c, and its PID. Kernels before
// Linux 6.5 lack SO_PEERPIDFD and report only the PID: if the peer has exited, it may by now
// belong to another process.
func PeerProcess(c *net.UnixConn) (pidfd *os.File, pid int, err error) {
	peer, err := PeerOf(c)
	if err != nil {
		return nil, 0, err
	}
	if peer.PID <= 0 {
		return nil, 0, errors.New("the peer is in another pid namespace")
	}
	var fd int
	err = control(c, func(s uintptr) (err error) {
		fd, err = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		return os.NewSyscallError("getsockopt(SO_PEERPIDFD)", err)
	})
	if errors.Is(err, unix.ENOPROTOOPT) {
		pidfd, err = PidfdOpen(peer.PID)
		return pidfd, peer.PID, err
	}
	if err != nil { // ESRCH or EINVAL: the peer has exited and was reaped
		return nil, 0, err
	}
	return os.NewFile(uintptr(fd), "pidfd"), peer.PID, nil // the kernel has set close-on-exec
}
