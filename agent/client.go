package agent

import (
	"sync"
	"sync/atomic"

	"github.com/boxd/boxd/agent/wire"
)

// client is a connection for those who send on it beside the thread that serves
// it: they may come when it has been closed and its number is another's.
type client struct {
	conn   *wire.Conn
	number uint64 // in the order in which they came

	mu   sync.Mutex
	gone bool
}

// newClient is a client that came after all others so far.
func newClient(conn *wire.Conn) *client {
	return &client{conn: conn, number: clients.Add(1)}
}

var clients atomic.Uint64

// orLater returns c, or other if that came later: what a client has sent may be read
// when it is gone and the next one is there.
func (c *client) orLater(other *client) *client {
	if other != nil && other.number > c.number {
		return other
	}
	return c
}

// send sends one frame. A client that is gone has no use for it.
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

// leave keeps everybody from sending.
func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
}
