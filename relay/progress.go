package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// lastWrite bounds writes to a connection that is being closed.
const lastWrite = time.Second

// progressConn is a connection whose writes fail when the peer takes nothing for
// the time stall. A deadline for a whole message would cut a slow peer again and
// again at the same message.
type progressConn struct {
	net.Conn
	stall time.Duration

	mu      sync.Mutex
	hurried bool
}

func newProgressConn(c net.Conn, stall time.Duration) *progressConn {
	return &progressConn{Conn: c, stall: stall}
}

// SetWriteDeadline does nothing: Write sets its own.
func (c *progressConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets that for reading.
func (c *progressConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// hurry bounds the write that is under way and all later ones by lastWrite.
func (c *progressConn) hurry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hurried = true
	c.Conn.SetWriteDeadline(time.Now().Add(lastWrite))
}

// extend sets the deadline of the next write. may is false if p was not written by
// one that began earlier and there is no more time.
func (c *progressConn) extend(again bool) (may bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hurried && again {
		return false, nil
	}
	d := c.stall
	if c.hurried {
		d = lastWrite
	}
	return true, c.Conn.SetWriteDeadline(time.Now().Add(d))
}

func (c *progressConn) Write(p []byte) (int, error) {
	done := 0
	for {
		may, err := c.extend(done > 0)
		if err != nil || !may {
			return done, errors.Join(err, os.ErrDeadlineExceeded)
		}
		n, err := c.Conn.Write(p[done:])
		done += n
		if err == nil || n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return done, err
		}
	}
}

// isNetError says whether an error of reading is one of the connection, not of what
// came through it.
func isNetError(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe)
}
