package linerelay

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/wsconn"
)

// conn is one client. The goroutine of the request reads from it (read). One more sends the
// output (pump), and one pings the client and ends the connection (supervise). All of them end
// with ctx.
type conn struct {
	relay *Relay

	ctx    context.Context // its cause is a *closing
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	ws       *websocket.Conn // only read from: frames are written to wire
	wire     *wire
	pumped   chan struct{} // closed when no more output is sent
	readDone chan struct{} // closed when read returns
	holding  atomic.Bool   // read does not read, because the process does not
}

func newConn(r *Relay) *conn {
	c := &conn{relay: r, pumped: make(chan struct{}), readDone: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(r.ctx)
	return c
}

// serve relays until the connection ends, and joins the goroutines that it started.
func (c *conn) serve() {
	stop := context.AfterFunc(c.ctx, func() { c.wire.Hurry(c.relay.times.hurry) })
	defer stop()
	c.wg.Go(c.pump)
	c.wg.Go(c.supervise)
	c.read()
	c.wg.Wait()
}

// read handles the client's messages until the connection ends.
func (c *conn) read() {
	defer close(c.readDone)
	c.ws.SetReadLimit(maxReceive)
	c.ws.SetCloseHandler(func(int, string) error { return nil }) // supervise answers
	c.ws.SetPingHandler(func(text string) error {
		// A busy connection leaves the ping unanswered: output is under way then.
		c.wire.writeControl(opPong, []byte(text), time.Second)
		return nil
	})
	for {
		kind, r, err := c.ws.NextReader()
		var message []byte
		if err == nil && kind == websocket.TextMessage {
			message, err = readMessage(r)
		}
		if err != nil {
			c.readFailed(err)
			return
		}
		if kind == websocket.TextMessage && c.ctx.Err() == nil {
			c.forward(message)
		}
	}
}

// readFailed ends the connection because of an error of reading. Whatever the client sends
// after a violation is discarded: closing a socket with unread bytes in it would destroy
// what the client has not read yet.
func (c *conn) readFailed(err error) {
	closed, isClose := errors.AsType[*websocket.CloseError](err)
	switch {
	case isClose && closed.Code == websocket.CloseNoStatusReceived:
		c.cancel(closeExited)
	case isClose && closed.Code != websocket.CloseAbnormalClosure:
		c.cancel(&closing{Code: closed.Code})
	case isClose, wsconn.IsLost(err):
		c.cancel(closeLost)
	default: // the library has sent a close frame, 1009 or 1002
		c.cancel(closeBroken)
		io.Copy(io.Discard, c.wire.Conn.Conn)
	}
}

// readMessage reads a message and appends a newline. Its buffer grows with the bytes that
// arrive, not with the announced length.
func readMessage(r io.Reader) ([]byte, error) {
	buf := make([]byte, 0, 512)
	for {
		if cap(buf)-len(buf) < 2 {
			buf = append(make([]byte, 0, 2*cap(buf)), buf...)
		}
		n, err := r.Read(buf[len(buf) : cap(buf)-1])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return append(buf, '\n'), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// forward passes a message to the process.
func (c *conn) forward(message []byte) {
	if !utf8.Valid(message) {
		c.cancel(closeInvalid)
		return
	}
	c.relay.touch()
	c.holding.Store(true)
	c.relay.stdin.put(c.ctx, message)
	c.holding.Store(false)
}

// supervise pings, and ends the connection with a close frame.
func (c *conn) supervise() {
	defer c.wire.Close()
	t := &c.relay.times
	for !wsconn.Within(t.ping, c.ctx.Done()) {
		before := c.wire.reads.Load()
		err := c.wire.writeControl(opPing, nil, time.Second)
		if err != nil && err != errBusy && err != errClosed {
			c.cancel(closeLost) // read does not notice while it is not reading
		}
		if wsconn.Within(t.pong, c.ctx.Done()) {
			break
		}
		// A pong may be late if the peer accepts output slowly; the wire watches the progress
		// of that. And while a message waits for the process, nothing is read.
		if err == nil && c.wire.reads.Load() == before && !c.wire.busy() && !c.holding.Load() {
			c.cancel(closeLost)
		}
	}
	c.finish()
}

// finish sends the reason, after the output, and waits a little for the answer.
func (c *conn) finish() {
	<-c.pumped
	why := closeLost
	errors.As(context.Cause(c.ctx), &why)
	if why == closeLost {
		return
	}
	if err := c.wire.writeControl(opClose, why.Message(), c.relay.times.hurry); err == nil || err == errClosed {
		wsconn.Within(c.relay.times.linger, c.readDone)
	}
}
