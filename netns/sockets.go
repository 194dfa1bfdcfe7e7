package netns

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/boxd/boxd/internal/linux"
)

// Bounds of a socket of [Listen]. A process of the box decides how much data waits in connections
// that nobody has accepted yet. No cgroup of the box is charged for it, so there is little: 8 MiB.
const (
	backlog       = 64
	receiveBuffer = 64 << 10 // bytes; the kernel doubles it
)

// Sockets opens TCP sockets in the network namespace behind ns, which may be a pidfd of a process
// in it: first those that listen, on loopback addresses of the namespace, then ipv4 and ipv6
// unconnected ones. They stay in the namespace, whichever process uses them, and do not block.
// The caller owns them. After a failure none is left.
func Sockets(ns *os.File, listen []netip.AddrPort, ipv4, ipv6 int) (sockets []*os.File, err error) {
	open := func(six bool) (*os.File, error) {
		s, err := linux.TCPSocket(six)
		if err == nil {
			sockets = append(sockets, s)
		}
		return s, err
	}
	err = in(ns, func() error {
		for _, at := range listen {
			if !at.Addr().Unmap().IsLoopback() {
				return fmt.Errorf("listening on %s: not an address of loopback", at)
			}
			s, err := open(at.Addr().Unmap().Is6())
			if err == nil {
				err = linux.ListenTCP(s, at, backlog, receiveBuffer)
			}
			if err != nil {
				return fmt.Errorf("listening on %s: %w", at, err)
			}
		}
		for n := range ipv4 + ipv6 {
			if _, err := open(n >= ipv4); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		linux.CloseAll(sockets)
		return nil, err
	}
	return sockets, nil
}
