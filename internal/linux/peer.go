package linux

import (
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
