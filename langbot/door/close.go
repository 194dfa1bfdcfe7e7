package door

import (
	"errors"
	"net"
	"time"

	"github.com/gorilla/websocket"
)

// closeWait bounds the sending of a close frame, while somebody else may be writing.
const closeWait = time.Second

// shut sends a close frame, cancels the actions and lets the reader wait for the answer
// to it, not for ever. The first call counts.
func (c *conn) shut(code int, reason string) {
	c.mu.Lock()
	first := !c.closing
	c.closing = true
	c.mu.Unlock()
	if !first {
		return
	}
	c.cancel()
	c.out.stop() // behind a close frame nothing may come
	// At most 125 bytes (RFC 6455, 5.5): all reasons here are shorter.
	c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), time.Now().Add(closeWait))
	c.meter.finish(c.d.times.linger)
}

// isTimeout reports whether err is that of a deadline.
func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// isNet reports whether err is of the connection: there is nobody to talk to. The end of
// the stream is none of these: the library makes a CloseError of it.
func isNet(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) || errors.Is(err, net.ErrClosed)
}
