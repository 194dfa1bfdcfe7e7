package relay

import (
	"time"
)

// consume notes that everything up to now was consumed, and acknowledges it now or
// soon.
func (c *Client) consume() {
	if c.hello.Window == 0 {
		return
	}
	c.amu.Lock()
	defer c.amu.Unlock()
	now, later := false, false
	for i := range c.streams {
		p := &c.streams[i]
		p.consumed = p.next
		now = now || p.consumed-p.acked >= min(maxUnacked, max(c.hello.Window/4, 1))
		later = later || p.consumed > p.acked
	}
	switch {
	case now:
		c.acknowledgeLocked()
	case later && c.timer == nil && !c.closed:
		c.timer = time.AfterFunc(maxAckDelay, c.acknowledge)
	}
}

func (c *Client) acknowledge() {
	c.amu.Lock()
	defer c.amu.Unlock()
	c.acknowledgeLocked()
}

func (c *Client) acknowledgeLocked() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	for i := range c.streams {
		if p := &c.streams[i]; p.consumed > p.acked && !c.closed {
			p.acked = p.consumed
			c.send(appendAck(nil, Stream(i), p.acked)) // a failure shows in Recv
		}
	}
}
