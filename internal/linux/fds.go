package linux

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// DupNonblocking returns a duplicate of f that can have deadlines. Every holder of the open file description finds it
// non-blocking.
func DupNonblocking(f *os.File) (*os.File, error) {
	if err := unix.SetNonblock(int(f.Fd()), true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return Dup(f)
}

// ReceiveFDs reads a message of one byte that carries descriptors, at most most of them, from c. The caller
// owns the files, which are closed on exec. A message with more descriptors, more bytes or none is an error.
func ReceiveFDs(c *net.UnixConn, most int) ([]*os.File, error) {
	data, oob := make([]byte, 2), make([]byte, unix.CmsgSpace(4*most))
	n, oobn, flags, _, err := c.ReadMsgUnix(data, oob) // with MSG_CMSG_CLOEXEC
	var files []*os.File
	if messages, perr := syscall.ParseSocketControlMessage(oob[:oobn]); perr == nil {
		for i := range messages {
			fds, _ := syscall.ParseUnixRights(&messages[i]) // anything else carries none
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "received"))
			}
		}
	}
	switch {
	case err != nil:
	case flags&unix.MSG_CTRUNC != 0 || len(files) > most:
		err = fmt.Errorf("more than %d descriptors", most)
	case n != 1 || len(files) == 0:
		err = errors.New("not one byte with descriptors")
	}
	if err != nil {
		CloseAll(files)
		return nil, fmt.Errorf("receiving descriptors: %w", err)
	}
	return files, nil
}
