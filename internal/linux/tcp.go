package linux

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// TCPSocket opens a non-blocking TCP socket, of IPv6 or of IPv4. It stays in the network namespace
// of the calling thread, whichever process uses it.
func TCPSocket(six bool) (*os.File, error) {
	family := unix.AF_INET
	if six {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket(SOCK_STREAM)", err)
	}
	return os.NewFile(uintptr(fd), "tcp"), nil
}

// ListenTCP has a [TCPSocket] listen on at. Connections that nobody has accepted yet are at most
// backlog, and each of them receives up to twice receive bytes (socket(7), SO_RCVBUF).
func ListenTCP(socket *os.File, at netip.AddrPort, backlog, receive int) error {
	return control(socket, func(fd uintptr) error {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return os.NewSyscallError("setsockopt(SO_REUSEADDR)", err)
		}
		// The sockets of its connections inherit this.
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receive); err != nil {
			return os.NewSyscallError("setsockopt(SO_RCVBUF)", err)
		}
		if err := unix.Bind(int(fd), sockaddr(at)); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return os.NewSyscallError("listen", unix.Listen(int(fd), backlog))
	})
}

// StartConnect begins to connect a [TCPSocket] to at. EINPROGRESS: the socket becomes writable
// when the connection is made or refused.
func StartConnect(socket *os.File, at netip.AddrPort) error {
	return control(socket, func(fd uintptr) error {
		return os.NewSyscallError("connect", Retry(func() error { return unix.Connect(int(fd), sockaddr(at)) }))
	})
}

// AwaitConnect waits until a socket that is connecting is connected, or ctx ends. The runtime must
// be able to poll the file.
func AwaitConnect(ctx context.Context, socket *os.File) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = socket.SetWriteDeadline(time.Unix(1, 0)) })()
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		err := Retry(func() error { _, err := unix.Poll(fds, 0); return err })
		if err == nil && fds[0].Revents == 0 {
			return false
		}
		status, serr := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err = errors.Join(err, serr); err == nil && status != 0 {
			err = os.NewSyscallError("connect", unix.Errno(status))
		}
		failed = err
		return true
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, failed)
}

// NetworkOf returns the cookie of the network namespace that a socket belongs to: a number that
// no other namespace gets until the host reboots (SO_NETNS_COOKIE, Linux 5.14).
func NetworkOf(socket syscall.Conn) (cookie uint64, err error) {
	err = control(socket, func(fd uintptr) error {
		cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return os.NewSyscallError("getsockopt(SO_NETNS_COOKIE)", err)
	})
	return cookie, err
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if a := at.Addr().Unmap(); a.Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}
