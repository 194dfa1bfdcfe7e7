// Package drained copies the output of a command until its end, or until somebody cuts it, without losing what has been
// written by then. It is linked into the part of boxd that has to start fast, so it is apart from package linux.
package drained

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reader reads a pipe or terminal until its end. A read deadline in the past cuts it: then
// it reads only the bytes that the file holds at that moment. So a slow reader loses none of
// them, and a fast writer cannot keep it from ending. Only one goroutine may use it at a time.
type Reader struct {
	File *os.File // must be non-blocking; the caller closes it
	// TTYBuffer is how many bytes File may hold if it is a terminal, which reports fewer; 0: it is none.
	TTYBuffer int

	cut  bool
	left int // unread bytes of those held at the cut
}

// copyBuffers are the buffers of copies to writers without descriptors. io.Copy makes one of 32 KiB for each
// stream, which would be two thirds of what a daemon allocates for a command.
var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// WriteTo implements [io.WriterTo], so that os.File can splice.
func (d *Reader) WriteTo(w io.Writer) (int64, error) {
	n, err := copyFile(w, d.File)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	rest, err := io.Copy(w, struct{ io.Reader }{d})
	return n + rest, err
}

func copyFile(w io.Writer, f *os.File) (int64, error) {
	_, reads := w.(io.ReaderFrom)
	_, spliced := w.(syscall.Conn)
	if reads || spliced {
		return io.Copy(w, f)
	}
	return Copy(w, struct{ io.Reader }{f})
}

// Copy is [io.Copy] with a buffer from a pool.
func Copy(w io.Writer, r io.Reader) (int64, error) {
	b := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(b)
	return io.CopyBuffer(w, r, *b)
}

// Read implements [io.Reader].
func (d *Reader) Read(b []byte) (int, error) {
	if !d.cut {
		n, err := d.File.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := d.count(); err != nil {
			return n, err
		}
	}
	n, err := d.take(b[:min(len(b), d.left)])
	d.left -= n
	return n, err
}

// count notes how many bytes the file holds.
func (d *Reader) count() error {
	d.cut = true
	return d.control("ioctl(FIONREAD)", func(fd int) (err error) {
		d.left, err = unix.IoctlGetInt(fd, unix.TIOCINQ) // also called FIONREAD
		if _, e := unix.IoctlGetTermios(fd, unix.TCGETS); e == nil && d.TTYBuffer > 0 {
			d.left = d.TTYBuffer
		}
		return err
	})
}

// take reads without waiting for more.
func (d *Reader) take(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, io.EOF
	}
	err = d.control("read", func(fd int) (err error) {
		n, err = unix.Read(fd, b)
		return err
	})
	if errors.Is(err, unix.EAGAIN) || err == nil && n == 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

// Incomplete reports, after the end of the copy and before File is closed, whether it was cut while somebody could still
// write, or had written more than was read.
func (d *Reader) Incomplete() bool {
	if !d.cut {
		return false
	}
	fds := []unix.PollFd{{Events: unix.POLLIN}}
	err := d.control("poll", func(fd int) error {
		fds[0].Fd = int32(fd)
		_, err := unix.Poll(fds, 0)
		return err
	})
	return err != nil || fds[0].Revents&unix.POLLHUP == 0 || fds[0].Revents&unix.POLLIN != 0
}

// control runs one system call on the descriptor, whatever its deadline.
func (d *Reader) control(name string, call func(fd int) error) error {
	raw, err := d.File.SyscallConn()
	if err != nil {
		return err
	}
	var cerr error
	err = raw.Control(func(fd uintptr) {
		for {
			if cerr = call(int(fd)); cerr != unix.EINTR {
				return
			}
		}
	})
	return errors.Join(err, os.NewSyscallError(name, cerr))
}
