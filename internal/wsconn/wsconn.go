// Package wsconn has what the server's WebSockets share below their protocols: upgrading a
// request with a connection of one's own underneath, writes that fail when the peer makes
// no progress, bounded waits for the peer, and the reason for which a connection ends. What
// the messages mean, and when to ping, is up to its users.
package wsconn

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// Upgrade answers the request with u, with a WebSocket or an error. The WebSocket reads
// from and writes to the connection that wrap returns.
func Upgrade(u *websocket.Upgrader, w http.ResponseWriter, r *http.Request, wrap func(net.Conn) net.Conn) (*websocket.Conn, error) {
	return u.Upgrade(&hijacker{w, wrap}, r, nil)
}

type hijacker struct {
	http.ResponseWriter
	wrap func(net.Conn) net.Conn
}

// Hijack returns the connection's own reader and writer: the upgrader reuses their
// buffers at most, and writes to the wrapped connection.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return h.wrap(c), rw, nil
}

// Conn is a connection whose writes fail with os.ErrDeadlineExceeded when the peer accepts
// nothing for a while. A deadline for a whole message would cut off a slow peer at the
// same message again and again. Write deadlines that are set from outside have no effect.
type Conn struct {
	net.Conn

	mu      sync.Mutex
	stall   time.Duration // for which the peer may accept nothing
	hurried bool
}

// New returns a connection whose peer may accept nothing for the time stall.
func New(c net.Conn, stall time.Duration) *Conn { return &Conn{Conn: c, stall: stall} }

// SetWriteDeadline does nothing, because Write sets its own deadlines.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets the deadline for reading only.
func (c *Conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// Hurry is for a connection that ends: the write under way gets d more, and each later one
// d as a whole, whatever progress it makes.
func (c *Conn) Hurry(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stall, c.hurried = d, true
	c.Conn.SetWriteDeadline(time.Now().Add(d))
}

func (c *Conn) Write(p []byte) (n int, err error) {
	for {
		if err := c.extendDeadline(n > 0); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(p[n:])
		n += m
		if err == nil || m == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

// extendDeadline sets the deadline for the next part of a write, unless the connection is
// hurried and an earlier part has used up the time.
func (c *Conn) extendDeadline(again bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hurried && again {
		return os.ErrDeadlineExceeded
	}
	return c.Conn.SetWriteDeadline(time.Now().Add(c.stall))
}

// IsLost reports whether an error of reading is one of the connection, and not of what the
// peer sent.
func IsLost(err error) bool {
	_, isNet := errors.AsType[net.Error](err)
	return isNet || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe)
}

// Within waits until done is closed, for the time d at most, and reports whether it was.
func Within(d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// Closing is the reason for which a connection ends, as stated in its close frame. It can
// be the cause of a context.
type Closing struct {
	Code int
	Text string
}

func (c *Closing) Error() string { return fmt.Sprintf("close %d: %s", c.Code, c.Text) }

// Message returns the body of the close frame: at most 125 bytes (RFC 6455, 5.5), with a
// text that is UTF-8 (5.5.1).
func (c *Closing) Message() []byte {
	return websocket.FormatCloseMessage(c.Code, strings.ToValidUTF8(c.Text[:min(len(c.Text), 123)], ""))
}
