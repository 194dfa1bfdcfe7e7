package native

import (
	"errors"
	"io"
	"os"

	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// drained reads a pipe or terminal until its end, or, once it is cut by a read
// deadline in the past, until the end of what it holds at that moment: however
// slow the reader is, nothing of that is lost, and however fast others write, it
// ends.
type drained struct {
	file *os.File
	cut  bool
	left int // bytes that still count after the cut
}

// WriteTo implements io.WriterTo, for the short ways that os.File knows.
func (d *drained) WriteTo(w io.Writer) (int64, error) {
	n, err := io.Copy(w, d.file)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	rest, err := io.Copy(w, struct{ io.Reader }{d})
	return n + rest, err
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

// count notes how much there is.
func (d *drained) count() error {
	d.cut = true
	return d.control("ioctl(FIONREAD)", func(fd int) (err error) {
		d.left, err = unix.IoctlGetInt(fd, unix.TIOCINQ) // also called FIONREAD
		if _, e := unix.IoctlGetTermios(fd, unix.TCGETS); e == nil {
			d.left = linux.TTYBuffer // it tells less than it has
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
