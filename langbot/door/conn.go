package door

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/langbot/protocol"
)

// maxInFlight is the maximum number of actions of one connection at a time.
const maxInFlight = 128

// maxAsking is the maximum number of bytes of one connection's requests under way, however
// much room Memory has.
const maxAsking = 64 << 20

var errBusy = &protocol.Error{Text: "Runtime connection is busy (max 128 concurrent actions)"}

// conn is a connection that carries actions. One goroutine reads, and each action has its
// own. An action that finishes while no other goroutine is writing writes all replies that
// are queued.
type conn struct {
	d      *Door
	info   *Conn
	ws     *websocket.Conn
	meter  *meter
	out    sender
	ctx    context.Context // of the actions
	cancel context.CancelFunc
	wg     sync.WaitGroup // all goroutines except the one that reads

	mu      sync.Mutex
	actions int
	asking  int   // bytes of the requests under way
	asked   share // the same bytes, as counted by Memory
	closing bool  // a close frame was sent or is being sent
}

func newConn(d *Door, ws *websocket.Conn, m *meter, r *http.Request, instance string) *conn {
	c := &conn{d: d, ws: ws, meter: m, info: &Conn{Remote: r.RemoteAddr, instance: instance}}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	c.out.init(ws, m, &d.memory.waiting, d.times, c.cancel)
	c.asked.instance, c.out.share.instance = instance, instance
	ws.EnableWriteCompression(false)
	// The library's own handler fails after a second, and the connection with it: a peer
	// whose event loop stalls while we write to it would be lost.
	ws.SetPingHandler(func(data string) error {
		err := ws.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(d.times.write))
		if errors.Is(err, websocket.ErrCloseSent) {
			return nil
		}
		return err
	})
	return c
}

// serve handles requests until the connection ends, and joins all goroutines that it
// started.
func (c *conn) serve() {
	log := c.d.o.Logger.With("remote", c.info.Remote, "instance", c.info.instance)
	c.d.b.Opened(c.info)
	if !c.d.addConn(c) {
		c.shut(websocket.CloseGoingAway, stopReason)
	}
	log.Debug("LangBot's door: connected")
	c.wg.Go(c.ping)
	err := c.read()
	c.cancel()
	c.end(err)
	if c.out.isCut() {
		err = errCut
	}
	c.ws.Close()
	c.out.stop()
	c.d.removeConn(c)
	c.wg.Wait()
	c.d.b.Closed(c.info)
	log.Debug("LangBot's door: connection over", "reason", err)
}

// read handles messages until the connection ends, and returns why.
func (c *conn) read() error {
	for {
		if !c.out.wait() { // a peer that does not accept replies is not read from
			return net.ErrClosed
		}
		kind, r, err := c.ws.NextReader()
		if err != nil {
			return err
		}
		if kind != websocket.TextMessage {
			return errBinary
		}
		if err := c.receive(r); err != nil {
			return err
		}
	}
}

// startAction starts the action that a message requests.
func (c *conn) startAction(msg []byte) {
	r, err := protocol.Parse(msg)
	switch {
	case errors.Is(err, protocol.ErrIgnore):
		return
	case err == nil:
		size := cap(msg) // the memory that the request occupies
		if err = c.countIn(size); err == nil {
			c.wg.Go(func() { c.run(r, size) })
			return
		}
	}
	if c.out.add(c.out.admit(r.Seq, protocol.Failure(r.Seq, err))) {
		c.wg.Go(c.out.flush) // this goroutine continues to read
	}
}

// countIn counts a new action and the bytes of its request.
func (c *conn) countIn(size int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closing || c.actions >= maxInFlight || c.asking+size > maxAsking:
		return errBusy
	case !c.d.memory.asking.take(&c.asked, size):
		return errAll
	}
	c.actions++
	c.asking += size
	return nil
}

// run performs one action and answers it.
func (c *conn) run(r protocol.Request, size int) {
	seq := bytes.Clone(r.Seq) // it is part of the message
	data, err := c.do(r)
	out := c.encode(seq, data, err, size)
	// The action is counted out at the moment when its reply is queued. Earlier, more actions
	// could start than there is room for; later, the peer might already have the reply.
	c.mu.Lock()
	c.actions--
	flush := c.out.add(out)
	c.mu.Unlock()
	if flush {
		c.out.flush()
	}
}

// encode returns the admitted reply to an action, whose request it counts out. It returns
// the zero reply if the connection has ended.
func (c *conn) encode(seq json.RawMessage, data any, err error, size int) reply {
	if data != nil || err != nil { // otherwise the reply is short, and may answer a __ping
		select {
		case c.d.memory.encoding <- struct{}{}:
			defer func() { <-c.d.memory.encoding }()
		case <-c.ctx.Done():
		}
	}
	var b []byte
	switch {
	case c.ctx.Err() != nil:
	case err != nil:
		b = protocol.Failure(seq, err)
	default:
		b = protocol.Success(seq, data)
	}
	// The request is no longer needed. It must be counted out before the reply is admitted:
	// neither may wait for room while it occupies some.
	c.mu.Lock()
	c.asking -= size
	c.d.memory.asking.give(&c.asked, size)
	c.mu.Unlock()
	return c.out.admit(seq, b)
}

// do calls Backend.Do. A panic in it fails this action only, as in net/http, and not all
// boxes.
func (c *conn) do(r protocol.Request) (_ any, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.d.o.Logger.Error("LangBot's door: an action panicked", "action", r.Action, "panic", p, "stack", string(debug.Stack()))
			err = errors.New("internal error: see the log of the server")
		}
	}()
	return c.d.b.Do(c.ctx, c.info, r)
}

// ping pings the peer regularly, so that a peer that is gone is noticed.
func (c *conn) ping() {
	t := time.NewTicker(c.d.times.ping)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			// If this fails, reading fails before long, too.
			c.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(c.d.times.write))
		case <-c.ctx.Done():
			return
		}
	}
}

// end tells the peer why the connection ends, unless the peer ended it.
func (c *conn) end(err error) {
	if _, closed := errors.AsType[*websocket.CloseError](err); c.meter.broken != nil {
		err = c.meter.broken
	} else if closed {
		return // closed by the peer, and answered; or the peer is gone
	}
	switch {
	case errors.Is(err, errTooBig), errors.Is(err, errFragments):
		c.shut(websocket.CloseMessageTooBig, err.Error())
	case errors.Is(err, errTurn):
		c.shut(websocket.CloseTryAgainLater, err.Error())
	case errors.Is(err, errBinary):
		c.shut(websocket.CloseNormalClosure, "")
	case errors.Is(err, errUTF8):
		c.shut(websocket.CloseInvalidFramePayloadData, err.Error())
	case errors.Is(err, context.Canceled): // the connection's ctx has ended: a close frame was sent
	case isNet(err):
		return
	default: // an error of the library, which has told the peer of a protocol violation
		c.shut(websocket.CloseProtocolError, "")
	}
	c.meter.drain()
}

// closeWait bounds the sending of a close frame while another write is under way.
const closeWait = time.Second

// shut sends a close frame, cancels the actions, and bounds the wait for the peer's answer.
// Only the first call has an effect.
func (c *conn) shut(code int, reason string) {
	c.mu.Lock()
	first := !c.closing
	c.closing = true
	c.mu.Unlock()
	if !first {
		return
	}
	c.cancel()
	c.out.stop() // nothing may follow a close frame
	// At most 125 bytes (RFC 6455, 5.5): all reasons here are shorter.
	c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), time.Now().Add(closeWait))
	c.meter.finish(c.d.times.linger)
}

// isNet reports whether err is an error of the connection, so that no peer can be told. The
// end of the stream is not among them: the library turns it into a CloseError.
func isNet(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok || errors.Is(err, net.ErrClosed)
}
