package engine

import (
	"context"
	"net"
	"net/netip"
)

// Networked is a box whose loopback the caller can serve and reach, without a process in the box.
// Every box of a network namespace of its own is one. It is safe for concurrent use.
type Networked interface {
	// Listen opens listeners on loopback addresses of the box, such as 127.0.0.1:3128. The
	// caller closes them; they keep the box's network, not the box. After a failure none is left.
	Listen(ctx context.Context, at ...netip.AddrPort) ([]net.Listener, error)
	// Dial connects to a TCP port of the box's loopback, on 127.0.0.1, and on ::1 if nothing
	// listens there. syscall.ECONNREFUSED: nothing listens on either. ErrBoxLost.
	Dial(ctx context.Context, port int) (net.Conn, error)
}
