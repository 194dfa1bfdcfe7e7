package native

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// drained reads a pipe or terminal until its end. A read deadline in the past cuts it: then
// it reads only the bytes that the file holds at that moment. So a slow reader loses none of
// them, and a fast writer cannot keep it from ending.
type drained struct {
	file *os.File
	cut  bool
	left int // unread bytes of those held at the cut
}

// copyBuffers are the buffers of copies to writers without descriptors. io.Copy makes one of 32 KiB for each
// stream, which was two thirds of what a daemon allocates for a command.
var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// WriteTo implements io.WriterTo, so that os.File can splice.
func (d *drained) WriteTo(w io.Writer) (int64, error) {
	n, err := copyFile(w, d.file)
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
	b := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(b)
	return io.CopyBuffer(w, struct{ io.Reader }{f}, *b)
}

func (d *drained) Read(b []byte) (int, error) {
	if !d.cut {
		n, err := d.file.Read(b)
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
func (d *drained) count() error {
	d.cut = true
	return d.control("ioctl(FIONREAD)", func(fd int) (err error) {
		d.left, err = unix.IoctlGetInt(fd, unix.TIOCINQ) // also called FIONREAD
		if _, e := unix.IoctlGetTermios(fd, unix.TCGETS); e == nil {
			d.left = linux.TTYBuffer // a terminal reports less than it holds
		}
		return err
	})
}

// take reads without waiting for more.
func (d *drained) take(b []byte) (n int, err error) {
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

// control runs one system call on the descriptor, whatever its deadline.
func (d *drained) control(name string, call func(fd int) error) error {
	raw, err := d.file.SyscallConn()
	if err != nil {
		return err
	}
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cerr = linux.Retry(func() error { return call(int(fd)) })
	})
	return errors.Join(err, os.NewSyscallError(name, cerr))
}
