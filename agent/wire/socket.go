package wire

import (
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// socket is what a Conn needs of a stream socket, as *net.UnixConn offers it.
type socket interface {
	ReadMsgUnix(b, oob []byte) (n, oobn, flags int, addr *net.UnixAddr, err error)
	WriteMsgUnix(b, oob []byte, addr *net.UnixAddr) (n, oobn int, err error)
	Write(b []byte) (int, error)
	Close() error
}

// BlockingConn is a Conn on the connected stream socket fd, of which it takes
// ownership. Receive blocks the calling thread in the kernel instead of parking
// the goroutine: what arrives wakes just this thread, which saves the way through
// the runtime's poller. Close does not end a blocked Receive.
func BlockingConn(fd int) *Conn { return newConn(blocking(fd)) }

// blocking is a socket without O_NONBLOCK.
type blocking int

func (s blocking) ReadMsgUnix(b, oob []byte) (n, oobn, flags int, _ *net.UnixAddr, err error) {
	for {
		n, oobn, flags, _, err = unix.Recvmsg(int(s), b, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = io.EOF
		}
		return n, oobn, flags, nil, err
	}
}

func (s blocking) WriteMsgUnix(b, oob []byte, _ *net.UnixAddr) (n, oobn int, err error) {
	for {
		n, err = unix.SendmsgN(int(s), b, oob, nil, unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return n, len(oob), err
		}
	}
}

func (s blocking) Write(b []byte) (int, error) {
	n, _, err := s.WriteMsgUnix(b, nil, nil)
	return n, err
}

func (s blocking) Close() error { return unix.Close(int(s)) }
