package wire

import (
	"io"
	"net"
	"os"
	"time"

	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// socket is a stream socket as Conn uses it.
type socket interface {
	ReadMsgUnix(b, oob []byte) (n, oobn, flags int, addr *net.UnixAddr, err error)
	// send writes a part of b, and rights with its first byte. If the peer accepts
	// nothing for SendTimeout, or the time of SendWithin, it returns os.ErrDeadlineExceeded.
	send(b, rights []byte) (n int, err error)
	// limitRead makes reads fail with os.ErrDeadlineExceeded after end; zero means never.
	limitRead(end time.Time) error
	// abort ends the connection, so that a blocked reader returns.
	abort()
	Close() error
}

// polled is a socket that the runtime's poller waits for.
type polled struct {
	*net.UnixConn
	patience time.Duration // of send
}

func (s *polled) send(b, rights []byte) (n int, err error) {
	if err := s.SetWriteDeadline(time.Now().Add(s.patience)); err != nil {
		return 0, err
	}
	if len(rights) == 0 {
		return s.Write(b)
	}
	n, _, err = s.WriteMsgUnix(b, rights, nil)
	return n, err
}

// await returns when a read need not wait. It fails at the deadline of limitRead.
func (s *polled) await() error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(readable)
}

// readable reports whether a read of fd need not wait. After an error the read decides.
func readable(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n > 0 || err != nil
}

func (s *polled) limitRead(end time.Time) error { return s.SetReadDeadline(end) }

func (s *polled) abort() { _ = s.Close() }

// empty shuts the socket down, receives all that the peer has sent, and closes the descriptors
// in it without waiting. Closing the socket would close them too, but would wait for that.
func (s *polled) empty() {
	raw, err := s.SyscallConn()
	if err != nil {
		return // the socket is closed
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.Shutdown(int(fd), unix.SHUT_RDWR)
		data, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4*scmMaxFD))
		for {
			n, oobn, _, _, err := unix.Recvmsg(int(fd), data, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if err == unix.EINTR {
				continue
			}
			if fds, err := parseRights(oob[:max(oobn, 0)]); err == nil {
				linux.CloseForeign(fds)
			}
			if err != nil || n == 0 {
				return
			}
		}
	})
}

// BlockingConn returns a Conn on the connected stream socket fd, of which it takes
// ownership. Receive blocks the calling thread in the kernel instead of parking the
// goroutine. So a frame that arrives wakes only this thread, and the runtime's poller is
// not involved. Close does not end a blocked Receive.
func BlockingConn(fd int) *Conn {
	timeout := unix.NsecToTimeval(SendTimeout.Nanoseconds())
	// It fails only if fd is not a socket, which the first Receive will report.
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)
	return newConn(blocking(fd))
}

// blocking is a socket without O_NONBLOCK.
type blocking int

func (s blocking) ReadMsgUnix(b, oob []byte) (n, oobn, flags int, _ *net.UnixAddr, err error) {
	for {
		n, oobn, flags, _, err = unix.Recvmsg(int(s), b, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		switch {
		case err == unix.EAGAIN:
			err = os.ErrDeadlineExceeded
		case err == nil && n == 0:
			err = io.EOF
		}
		return n, oobn, flags, nil, err
	}
}

func (s blocking) send(b, rights []byte) (n int, err error) {
	for {
		n, err = unix.SendmsgN(int(s), b, rights, nil, unix.MSG_NOSIGNAL)
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			err = os.ErrDeadlineExceeded
		}
		return n, err
	}
}

// limitRead sets a timeout for each single read, so Conn calls it before every read.
func (s blocking) limitRead(end time.Time) error {
	var wait time.Duration // zero means forever
	if !end.IsZero() {
		wait = max(time.Until(end), time.Millisecond)
	}
	timeout := unix.NsecToTimeval(wait.Nanoseconds())
	return os.NewSyscallError("setsockopt(SO_RCVTIMEO)", unix.SetsockoptTimeval(int(s), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
}

// abort does not close the socket: a reader may be in the kernel with this number.
func (s blocking) abort() { _ = unix.Shutdown(int(s), unix.SHUT_RDWR) }

func (s blocking) Close() error { return unix.Close(int(s)) }
