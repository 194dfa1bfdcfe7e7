package relay

import (
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

// read handles what the client sends until the connection ends.
func (c *conn) read() {
	defer close(c.readDone)
	c.ws.SetReadLimit(maxToServer)
	alive := func() { c.ws.SetReadDeadline(time.Now().Add(c.hub.o.Dead)) }
	c.ws.SetPongHandler(func(string) error { alive(); return nil })
	buf := make([]byte, 512)
	for {
		alive()
		kind, r, err := c.ws.NextReader()
		var msg []byte
		if err == nil {
			msg, buf, err = readMessage(r, buf, maxToServer)
		}
		if err != nil {
			c.readFailed(err)
			return
		}
		if c.ctx.Err() != nil {
			continue // waiting for the peer to close
		}
		if kind != websocket.BinaryMessage {
			c.end(closeText)
		} else if why := c.handle(msg); why != nil {
			c.end(why)
		}
	}
}

// readFailed ends the connection because of what reading gave. What the peer goes
// on sending after a violation is thrown away, see finish.
func (c *conn) readFailed(err error) {
	var peer *websocket.CloseError
	switch {
	case errors.As(err, &peer):
		c.end(closeLost)
		return
	case errors.Is(err, websocket.ErrReadLimit):
		c.end(closeBig)
	case isNetError(err):
		c.end(closeLost)
		return
	default:
		c.end(closeBroken(err))
	}
	io.Copy(io.Discard, c.net.Conn)
}

// readMessage reads a message into buf, which it makes larger up to most bytes.
// The message is part of the buffer that it returns.
func readMessage(r io.Reader, buf []byte, most int) (msg, grown []byte, err error) {
	n := 0
	for {
		if n == len(buf) {
			if n > most {
				return nil, buf, malformed("message above %d bytes", most)
			}
			// One byte more than a message may have, so that its end is seen.
			buf = append(buf, make([]byte, min(max(4*n, 512), most+1)-n)...)
		}
		m, err := r.Read(buf[n:])
		n += m
		if err == io.EOF {
			return buf[:n], buf, nil
		}
		if err != nil {
			return nil, buf, err
		}
	}
}

// handle does what one message asks for.
func (c *conn) handle(msg []byte) *closing {
	frame, err := parseClient(msg)
	if err != nil {
		return closeBroken(err)
	}
	c.touch()
	if f, ok := frame.(ackFrame); ok {
		return c.acknowledge(f)
	}
	if !c.req.write {
		return closeObserver
	}
	switch f := frame.(type) {
	case stdinFrame:
		return c.takeStdin(f)
	case closeStdinFrame:
		return c.takeClose(f)
	}
	if !c.writer.Load() {
		return nil // taken over; the client may not know yet
	}
	switch f := frame.(type) {
	case resizeFrame:
		err = errors.ErrUnsupported
		if c.hub.src.Resize != nil {
			err = c.hub.src.Resize(f.rows, f.cols)
		}
	case signalFrame:
		err = errors.ErrUnsupported
		if c.hub.src.Signal != nil {
			err = c.grant.note(ActSignal, f.number)
		}
		if err == nil {
			err = c.hub.src.Signal(syscall.Signal(f.number))
		}
	}
	if err != nil {
		// Not sent from here: a client that does not listen because it is sending
		// would never be read to the end.
		select {
		case c.refused <- "refused: " + err.Error(): // never empty
		case <-c.ctx.Done():
		}
	}
	return nil
}

// touch tells the source that there is traffic, once a second.
func (c *conn) touch() {
	if c.hub.src.Touch == nil {
		return
	}
	now, last := time.Now().UnixNano(), c.touched.Load()
	if now-last >= int64(time.Second) && c.touched.CompareAndSwap(last, now) {
		c.hub.src.Touch()
	}
}
