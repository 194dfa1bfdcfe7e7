package linux

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReopenPipe opens the pipe behind f for writing again, with an open file description that nobody else holds: whatever
// the other holders of f do to theirs, a write to the result can have a deadline. f must be a pipe without a name,
// opened for writing, that this process may open. The caller owns the result, and f stays open.
func ReopenPipe(f *os.File) (*os.File, error) {
	name, err := os.Readlink(FdPath(f)) // unlike fstat(2), it asks no server of a file system
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(name, "pipe:[") {
		return nil, errors.New("not a pipe without a name")
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if flags&unix.O_PATH != 0 || flags&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, errors.New("not opened for writing")
	}
	return Reopen(f, unix.O_WRONLY|unix.O_NONBLOCK)
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
