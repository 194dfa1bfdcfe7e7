// Package tcprelay carries bytes between two TCP connections, both ways. It decides nothing about
// them: who may connect, how many, and to what, is up to its users.
package tcprelay

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// bufferSize is what one direction holds while it has bytes to move. A direction that waits holds none,
// so an idle connection, or one whose reader is slow to send, costs two small goroutines.
const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// ErrIdle: no byte moved in either direction for as long as that may be.
var ErrIdle = errors.New("no byte moved for too long")

// Bound gives c send and receive buffers of at most n bytes each, as the kernel counts them twice that
// (socket(7)). Without it the kernel lets them grow to tcp_rmem and tcp_wmem, several MiB, on behalf
// of a peer that does not read.
func Bound(c *net.TCPConn, n int) error {
	return errors.Join(c.SetReadBuffer(n), c.SetWriteBuffer(n))
}

// Abort closes c so that its peer learns that bytes may be missing: it is reset (RFC 9293, 3.10.5).
func Abort(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// Relay carries a and b until both streams have ended, and closes both. The end of one stream is passed
// on while the other continues, as shutdown(2) does. If either connection fails, or no byte moves for
// the time idle, both are reset. It returns the bytes from a and those from b; the error is nil if both
// streams were complete.
//
// Aborting a and b from outside ends it at once.
func Relay(a, b *net.TCPConn, idle time.Duration) (fromA, fromB int64, err error) {
	// If this process is killed, the kernel resets both, instead of ending streams that are not complete.
	a.SetLinger(0)
	b.SetLinger(0)
	r := &relay{idle: idle}
	r.last.Store(time.Now().UnixNano())
	until := time.Now().Add(idle)
	a.SetDeadline(until)
	b.SetDeadline(until)
	var errs [2]error
	carry := func(dst, src *net.TCPConn, total *int64, err *error) {
		if *err = r.copy(dst, src, total); *err == nil {
			*err = dst.CloseWrite()
		}
		if *err != nil { // the other direction fails at once
			Abort(a)
			Abort(b)
		}
	}
	var other sync.WaitGroup
	other.Go(func() { carry(a, b, &fromB, &errs[1]) })
	carry(b, a, &fromA, &errs[0])
	other.Wait()
	if err = errors.Join(errs[:]...); err == nil { // what was sent still has to arrive
		a.SetLinger(-1)
		b.SetLinger(-1)
	}
	a.Close()
	b.Close()
	return fromA, fromB, err
}

type relay struct {
	idle time.Duration
	last atomic.Int64 // when a byte moved, in nanoseconds of the Unix epoch
}

// copy moves bytes from src to dst until src ends. It takes a buffer only when src has bytes.
func (r *relay) copy(dst, src *net.TCPConn, total *int64) error {
	raw, err := src.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var b *[bufferSize]byte
		var n int
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			b = buffers.Get().(*[bufferSize]byte)
			for {
				if n, rerr = syscall.Read(int(fd), b[:]); rerr != syscall.EINTR {
					break
				}
			}
			if n <= 0 {
				buffers.Put(b)
			}
			return rerr != syscall.EAGAIN
		})
		switch {
		case err != nil:
			if err = r.extend(src, err); err != nil {
				return err
			}
			continue
		case rerr != nil:
			return os.NewSyscallError("read", rerr)
		case n == 0:
			return nil
		}
		r.last.Store(time.Now().UnixNano())
		*total += int64(n)
		err = r.write(dst, b[:n])
		buffers.Put(b)
		if err != nil {
			return err
		}
	}
}

// write is dst.Write, except that a deadline counts only if the relay is idle.
func (r *relay) write(dst *net.TCPConn, b []byte) error {
	for {
		n, err := dst.Write(b)
		if n > 0 {
			r.last.Store(time.Now().UnixNano())
		}
		if b = b[n:]; err == nil {
			return nil
		}
		if err = r.extend(dst, err); err != nil {
			return err
		}
	}
}

// extend sets the next deadline of c if err is a timeout although bytes have moved since. Otherwise it
// returns the error that ends the relay. Moving the deadline with each byte would cost more than moving
// a small packet.
func (r *relay) extend(c *net.TCPConn, err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	until := time.Unix(0, r.last.Load()).Add(r.idle)
	if !time.Now().Before(until) {
		return ErrIdle
	}
	return c.SetDeadline(until)
}
