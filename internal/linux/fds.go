package linux

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

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

// IsPassable reports whether f can become descriptor n of a command of strangers: a pipe, /dev/null, or, as
// descriptor 0, a regular file opened for reading only. Through any other file the command could do more than read
// its input or add to its output: truncate the file, lock it, read what a terminal's user types to other programs, or
// receive descriptors from a socket.
func IsPassable(f *os.File, n int) bool {
	var st unix.Stat_t
	if f == nil || unix.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return true
	case unix.S_IFREG:
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
		return n == 0 && err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY
	case unix.S_IFCHR:
		return st.Rdev == unix.Mkdev(1, 3)
	}
	return false
}

// SameDescription reports whether two descriptors share one open file description, as after
// "2>&1". It returns false on a kernel without kcmp(2).
func SameDescription(f, g *os.File) bool {
	pid := os.Getpid()
	order, err := Kcmp(KcmpFile, pid, int(f.Fd()), pid, int(g.Fd()))
	return err == nil && order == 0
}
