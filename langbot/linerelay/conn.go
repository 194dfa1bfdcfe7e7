package linerelay

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"
)

// conn is one client. Its goroutines are the one of the request, which reads what it
// sends (read); one that sends the output (pump); and one that pings it and ends the
// connection (mind). All end with ctx.
type conn struct {
	relay *Relay

	ctx    context.Context // its cause is a *closing
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	ws       *websocket.Conn // reads; what is written goes to wire
	wire     *wire
	pumped   chan struct{} // closed when no more output is sent
	readDone chan struct{} // closed when nothing is read any more
	holding  atomic.Bool   // nothing is read, because the process does not
}

func newConn(r *Relay) *conn {
	c := &conn{relay: r, pumped: make(chan struct{}), readDone: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(r.ctx)
	return c
}

// serve relays until the connection ends, and joins all that it started.
func (c *conn) serve() {
	stop := context.AfterFunc(c.ctx, func() { c.wire.hurry(c.relay.times.hurry) })
	defer stop()
	c.wg.Go(c.pump)
	c.wg.Go(c.mind)
	c.read()
	c.wg.Wait()
}

// read takes what the client sends until the connection ends.
func (c *conn) read() {
	defer close(c.readDone)
	c.ws.SetReadLimit(maxReceive)
	c.ws.SetCloseHandler(func(int, string) error { return nil }) // mind answers
	c.ws.SetPingHandler(func(text string) error {
		// One that finds no room is not answered: then output is under way.
		c.wire.control(opPong, []byte(text), time.Second)
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
			c.take(message)
		}
	}
}

// readFailed ends the connection because of what reading gave. What the client goes
// on sending after a violation is thrown away: closing a socket with unread bytes in
// it would destroy what the client has not read yet.
func (c *conn) readFailed(err error) {
	closed, isClose := errors.AsType[*websocket.CloseError](err)
	switch {
	case isClose && closed.Code == websocket.CloseNoStatusReceived:
		c.cancel(closeExited)
	case isClose && closed.Code != websocket.CloseAbnormalClosure:
		c.cancel(&closing{closed.Code, ""})
	case isClose, isNetError(err):
		c.cancel(closeLost)
	default: // the library has sent a close frame, 1009 or 1002
		c.cancel(closeBroken)
		io.Copy(io.Discard, c.wire.Conn)
	}
}

// readMessage reads a message and appends a newline. Its buffer grows with what has
// come, not with what was announced.
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

// take hands a message to the process.
func (c *conn) take(message []byte) {
	if !utf8.Valid(message) {
		c.cancel(closeInvalid)
		return
	}
	c.relay.touch()
	c.holding.Store(true)
	c.relay.stdin.put(c.ctx, message)
	c.holding.Store(false)
}

// mind pings, and ends the connection with a close frame.
func (c *conn) mind() {
	defer c.wire.Close()
	t := time.NewTimer(c.relay.times.ping)
	defer t.Stop()
	for {
		select {
		case <-c.ctx.Done():
			c.finish()
			return
		case <-t.C:
		}
		before := c.wire.reads.Load()
		err := c.wire.control(opPing, nil, time.Second)
		if err != nil && err != errBusy && err != errClosed {
			c.cancel(closeLost) // nobody else notices while nothing is read
		}
		t.Reset(c.relay.times.pong)
		select {
		case <-c.ctx.Done():
			c.finish()
			return
		case <-t.C:
		}
		// A ping behind output that the peer takes slowly is not answered in time; that
		// it takes some is watched by the wire. And while a message waits for the
		// process nothing is read.
		if err == nil && c.wire.reads.Load() == before && !c.wire.busy() && !c.holding.Load() {
			c.cancel(closeLost)
		}
		t.Reset(c.relay.times.ping)
	}
}

// finish says why, behind the output, and waits a little for the answer.
func (c *conn) finish() {
	<-c.pumped
	why := closeLost
	errors.As(context.Cause(c.ctx), &why)
	if why == closeLost {
		return
	}
	if err := c.wire.control(opClose, closeMessage(why), c.relay.times.hurry); err != nil && err != errClosed {
		return
	}
	t := time.NewTimer(c.relay.times.linger)
	defer t.Stop()
	select {
	case <-c.readDone:
	case <-t.C:
	}
}

// closeMessage is the body of a close frame: at most 125 bytes (RFC 6455, 5.5), with
// a text that is UTF-8 (5.5.1).
func closeMessage(c *closing) []byte {
	return websocket.FormatCloseMessage(c.code, strings.ToValidUTF8(c.reason[:min(len(c.reason), 123)], ""))
}
