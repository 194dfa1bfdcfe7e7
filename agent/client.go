package agent

import (
	"sync"
	"sync/atomic"

	"github.com/boxd/boxd/agent/wire"
)

// client is a connection on which goroutines other than its own thread send. It keeps them
// from sending after it was closed, when its descriptor may belong to another connection.
type client struct {
	conn   *wire.Conn
	number uint64 // counts connections

	mu   sync.Mutex
	gone bool
}

// newClient returns a client that is later than all others so far.
func newClient(conn *wire.Conn) *client {
	return &client{conn: conn, number: clients.Add(1)}
}

var clients atomic.Uint64

// orLater returns c, or other if that is later: a frame of a client may be read when the
// client is gone and the next one has come.
func (c *client) orLater(other *client) *client {
	if other != nil && other.number > c.number {
		return other
	}
	return c
}

// send sends one frame, unless the client is gone.
func (c *client) send(typ byte, id uint32, body []byte, fds ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendLocked(typ, id, body, fds...)
}

func (c *client) sendLocked(typ byte, id uint32, body []byte, fds ...int) {
	if !c.gone {
		_ = c.conn.SendFDs(typ, id, body, fds...)
	}
}

// hasLeft reports whether leave was called.
func (c *client) hasLeft() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

// leave makes send do nothing from now on.
func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
}
