package agent

import (
	"sync"

	"github.com/boxd/boxd/agent/wire"
)

// client is a connection for those who send on it beside the thread that serves
// it: they may come when it has been closed and its number is another's.
type client struct {
	conn *wire.Conn

	mu   sync.Mutex
	gone bool
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
