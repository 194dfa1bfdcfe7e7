package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

var _ engine.Networked = (*box)(nil)

// hostNetwork is the network of this process, in which no socket of a box may be.
var hostNetwork = sync.OnceValues(func() (uint64, error) {
	s, err := linux.TCPSocket(false)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	return linux.NetworkOf(s)
})

// sockets asks the launcher for sockets in the network of the box. The caller owns them.
func (b *box) sockets(ctx context.Context, m rpc.Sockets) ([]*os.File, error) {
	host, err := hostNetwork()
	if err != nil {
		return nil, err
	}
	m.ID = b.id
	files, err := b.engine.link.call(ctx, rpc.TypeSockets, m, nil)
	if err != nil {
		return nil, err
	}
	if len(files) != len(m.Listen)+m.IPv4+m.IPv6 {
		linux.CloseAll(files)
		return nil, fmt.Errorf("%d sockets: %w", len(files), wire.ErrProtocol)
	}
	for i, f := range files {
		network, err := linux.NetworkOf(f)
		if err == nil && network == host {
			err = errors.New("the launcher opened a socket in the network of the host")
		}
		if err == nil {
			files[i], err = pollable(f)
		}
		if err != nil {
			linux.CloseAll(files)
			return nil, err
		}
	}
	return files, nil
}

// Listen implements engine.Networked.
func (b *box) Listen(ctx context.Context, at ...netip.AddrPort) (listeners []net.Listener, err error) {
	files, err := b.sockets(ctx, rpc.Sockets{Listen: at})
	if err != nil {
		return nil, fmt.Errorf("listening in box %q: %w", b.id, err)
	}
	defer linux.CloseAll(files) // a net.Listener has a descriptor of its own
	for _, f := range files {
		l, err := net.FileListener(f)
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return nil, fmt.Errorf("listening in box %q: %w", b.id, err)
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// spareSockets is how many sockets a box that was dialled has ready at most, each a descriptor and some
// 2 KiB of kernel memory. Asking the launcher takes ten times as long as connecting.
const spareSockets = 4

// Dial implements engine.Networked.
func (b *box) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, &engine.FieldError{Field: "port", Value: fmt.Sprint(port), Rule: "must be 1 to 65535"}
	}
	conn, err := b.dial(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)))
	if errors.Is(err, unix.ECONNREFUSED) {
		six, err6 := b.dial(ctx, netip.AddrPortFrom(netip.IPv6Loopback(), uint16(port)))
		if err6 == nil {
			conn, err = six, nil
		} // a box without IPv6 has no say in why it failed
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to port %d of box %q: %w", port, b.id, err)
	}
	return conn, nil
}

// dial connects to at, an address of loopback.
func (b *box) dial(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	s, err := b.takeSocket(ctx, at.Addr().Is6())
	if err != nil {
		return nil, err
	}
	defer s.Close() // a net.Conn has a descriptor of its own
	if err := linux.StartConnect(s, at); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, err
	}
	if err := linux.AwaitConnect(ctx, s); err != nil {
		return nil, err
	}
	conn, err := net.FileConn(s)
	if err != nil {
		return nil, err
	}
	if peer, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || !peer.IP.IsLoopback() {
		conn.Close()
		return nil, fmt.Errorf("the connection leads to %s and not to loopback", conn.RemoteAddr())
	}
	return conn, nil
}

// takeSocket returns an unconnected socket in the network of the box. The caller owns it.
func (b *box) takeSocket(ctx context.Context, six bool) (*os.File, error) {
	if six {
		files, err := b.sockets(ctx, rpc.Sockets{IPv6: 1})
		if err != nil {
			return nil, err
		}
		return files[0], nil
	}
	b.mu.Lock()
	if n := len(b.spare); n > 0 {
		s := b.spare[n-1]
		b.spare = b.spare[:n-1]
		b.mu.Unlock()
		return s, nil
	}
	b.mu.Unlock()
	files, err := b.sockets(ctx, rpc.Sockets{IPv4: 1 + spareSockets})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	keep := 0
	if !b.lost && !b.ending { // other calls may have asked for sockets at the same time
		keep = min(len(files)-1, max(0, spareSockets-len(b.spare)))
	}
	b.spare = append(b.spare, files[1:1+keep]...)
	linux.CloseAll(files[1+keep:])
	return files[0], nil
}
