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

// maxInFlight is the most actions of one connection at a time.
const maxInFlight = 128

// maxAsking is the most bytes of requests of one connection under way, whatever there
// would be room for.
const maxAsking = 64 << 20

var errBusy = &protocol.Error{Text: "Runtime connection is busy (max 128 concurrent actions)"}

// conn is a connection that carries actions. One goroutine reads; each action has its
// own, and the one that finds nobody writing writes for all.
type conn struct {
	d      *Door
	info   *Conn
	ws     *websocket.Conn
	meter  *meter
	out    sender
	ctx    context.Context // of the actions
	cancel context.CancelFunc
	wg     sync.WaitGroup // all goroutines but the one that reads

	mu      sync.Mutex
	actions int
	asking  int   // bytes of the requests under way
	asked   share // the same, of Memory
	closing bool  // we send a close frame, or have sent it
}

func newConn(d *Door, ws *websocket.Conn, m *meter, r *http.Request, instance string) *conn {
	c := &conn{d: d, ws: ws, meter: m, info: &Conn{Remote: r.RemoteAddr, instance: instance}}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	c.out.init(ws, m, &d.memory.waiting, d.times, c.cancel)
	c.asked.instance, c.out.share.instance = instance, instance
	ws.EnableWriteCompression(false)
	// The library's own handler gives up after a second, and the connection with it: a
	// peer whose event loop stalls while we write to it would be lost.
	ws.SetPingHandler(func(data string) error {
		err := ws.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(d.times.write))
		if errors.Is(err, websocket.ErrCloseSent) {
			return nil
		}
		return err
	})
	return c
}

// serve reads until the connection is over, and returns when all that it had begun is.
func (c *conn) serve() {
	log := c.d.o.Logger.With("remote", c.info.Remote, "instance", c.info.instance)
	c.d.b.Opened(c.info)
	if !c.d.enter(c) {
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
	c.d.leave(c)
	c.wg.Wait()
	c.d.b.Closed(c.info)
	log.Debug("LangBot's door: connection over", "reason", err)
}

// read takes messages until there cannot be more, and returns why.
func (c *conn) read() error {
	for {
		if !c.out.wait() { // who does not take replies is not listened to
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

// take begins what a message asks for.
func (c *conn) take(msg []byte) {
	r, err := protocol.Parse(msg)
	switch {
	case errors.Is(err, protocol.ErrIgnore):
		return
	case err == nil:
		size := cap(msg) // what it keeps in memory
		if err = c.begin(size); err == nil {
			c.wg.Go(func() { c.run(r, size) })
			return
		}
	}
	if c.out.add(c.out.admit(r.Seq, protocol.Failure(r.Seq, err))) {
		c.wg.Go(c.out.flush) // this goroutine goes on reading
	}
}

// begin counts an action in.
func (c *conn) begin(size int) error {
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

// spent counts the bytes of a request out: nobody looks at them any more.
func (c *conn) spent(size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking -= size
	c.d.memory.asking.give(&c.asked, size)
}

// run does one action and answers it.
func (c *conn) run(r protocol.Request, size int) {
	seq := bytes.Clone(r.Seq) // it is a piece of the message
	data, err := c.do(r)
	out := c.encode(seq, data, err, size)
	// Before the peer can have the answer, and not before that counts among those to be
	// written: in between, more would be begun than there is room for.
	c.mu.Lock()
	c.actions--
	flush := c.out.add(out)
	c.mu.Unlock()
	if flush {
		c.out.flush()
	}
}

// encode returns the reply to an action, admitted, and counts its request out. There is
// none if nobody is there for it.
func (c *conn) encode(seq json.RawMessage, data any, err error, size int) reply {
	if data != nil || err != nil { // else it is short, and may be that to a __ping
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
	c.spent(size) // before there is room for the reply: one is never kept for the other
	return c.out.admit(seq, b)
}

// do is Backend.Do. A panic in it is the failure of one action and not of everybody's
// boxes, as it is in net/http.
func (c *conn) do(r protocol.Request) (_ any, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.d.o.Logger.Error("LangBot's door: an action panicked", "action", r.Action, "panic", p, "stack", string(debug.Stack()))
			err = errors.New("internal error: see the log of the server")
		}
	}()
	return c.d.b.Do(c.ctx, c.info, r)
}

// ping keeps the connection in use, so that a peer that is gone is noticed.
func (c *conn) ping() {
	t := time.NewTicker(c.d.times.ping)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			// If this does not work, reading does not either, before long.
			c.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(c.d.times.write))
		case <-c.ctx.Done():
			return
		}
	}
}

// end tells the peer why the connection ends, if the server decided that.
func (c *conn) end(err error) {
	var closed *websocket.CloseError
	switch {
	case c.meter.broken != nil:
		err = c.meter.broken
	case errors.As(err, &closed):
		return // by the peer, and answered; or it is gone
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
	case errors.Is(err, context.Canceled): // of ctx: a close frame was sent
	case isNet(err):
		return
	default: // of the library, which has said why if it is a matter of the protocol
		c.shut(websocket.CloseProtocolError, "")
	}
	c.meter.drain()
}
