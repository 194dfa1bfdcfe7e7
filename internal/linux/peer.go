package linux

import (
	"errors"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is who was at the other end of a Unix socket when it was connected.
type Peer struct {
	PID      int // in this process's pid namespace, 0 if it is not in it
	UID, GID int
	Groups   []int // supplementary ones; nil if they cannot be found out
}

// PeerOf returns who connected c: SO_PEERCRED and, since Linux 4.13, SO_PEERGROUPS,
// unix(7).
func PeerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var p Peer
	var sockErr error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			sockErr = os.NewSyscallError("getsockopt", err)
			return
		}
		p = Peer{PID: int(cred.Pid), UID: int(cred.Uid), GID: int(cred.Gid)}
		p.Groups = peerGroups(fd)
	})
	if err != nil {
		return Peer{}, err
	}
	return p, sockErr
}

// peerGroups asks twice at most: the kernel says how much room it needs.
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

// PeerProcess returns a pidfd of the process that connected c, and its pid. A kernel
// before Linux 6.5 (SO_PEERPIDFD) only knows the pid, which another process may have by
// now if the one that connected has ended.
func PeerProcess(c *net.UnixConn) (pidfd *os.File, pid int, err error) {
	peer, err := PeerOf(c)
	if err != nil {
		return nil, 0, err
	}
	if peer.PID <= 0 {
		return nil, 0, errors.New("the peer is in another pid namespace")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var fd int
	var sockErr error
	if err := raw.Control(func(s uintptr) { fd, sockErr = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD) }); err != nil {
		return nil, 0, err
	}
	if sockErr == unix.ENOPROTOOPT {
		pidfd, err = PidfdOpen(peer.PID)
		return pidfd, peer.PID, err
	}
	if sockErr != nil { // ESRCH, EINVAL: it has ended and was reaped
		return nil, 0, os.NewSyscallError("getsockopt(SO_PEERPIDFD)", sockErr)
	}
	unix.CloseOnExec(fd) // already so, as of every pidfd
	return os.NewFile(uintptr(fd), "pidfd"), peer.PID, nil
}
