package testutil

import (
	"net"

	"golang.org/x/sys/unix"
)

// LingeringSocket returns a socket whose last close takes an hour, or until the caller calls stop: the
// close waits for the other end to read all data, which it never does.
func LingeringSocket() (fd int, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return -1, nil, err
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return -1, nil, err
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		return -1, nil, err
	}
	file, err := near.(*net.TCPConn).File()
	if err == nil {
		fd, err = unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		file.Close()
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	for data := make([]byte, 1<<16); err == nil; {
		_, err = unix.Write(fd, data)
	}
	if err == unix.EAGAIN { // both ends are full
		err = unix.SetNonblock(fd, false)
	}
	if err == nil {
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600})
	}
	if err != nil {
		far.Close()
	}
	return fd, func() { far.Close() }, err
}
