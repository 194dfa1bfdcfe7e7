package preview

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/wsconn"
)

// A tunnel carries one TCP connection over a WebSocket, in the same way in both directions:
//
//   - A binary message has bytes of the stream; its boundaries mean nothing. Empty: ignored.
//   - The text message "eof": no bytes follow in this direction, as after shutdown(2).
//   - Close 1000, after "eof" in both directions: both streams are complete.
//   - Anything else that ends the connection: bytes may be missing. The TCP connection is
//     reset, so that its user does not take the end for the end of the data. Close 1011:
//     the TCP connection at the other end failed.
//
// The server pings. There are no windows: a TCP connection that is not read from stops the
// WebSocket, and ends it after Options.Idle.
const (
	eofText    = "eof"
	maxMessage = 1 << 20 // bytes; senders use at most copyBuffer
	pingEvery  = 30 * time.Second
	hurry      = 500 * time.Millisecond // for the writes of a tunnel that fails
	linger     = 2 * time.Second        // for the peer's close frame
)

var (
	errProtocol = errors.New("the peer broke the protocol of tunnels")
	tunnelPool  sync.Pool // of write buffers of WebSockets
)

// Tunnel is the client's half of a connection to a port. Dial makes it, and [Forward] uses it.
type Tunnel struct {
	ws   *websocket.Conn
	wire *wsconn.Conn // below ws
}

// Close ends a tunnel that was not used.
func (t *Tunnel) Close() error { return t.ws.Close() }

// ServeTunnel connects a WebSocket to a port until either or the context of the request ends. The
// caller has decided that the client may have the port. It does not wait for the port to open: a refusal is what a
// client of TCP expects.
func (p *Proxy) ServeTunnel(w http.ResponseWriter, r *http.Request, target Target) {
	if !websocket.IsWebSocketUpgrade(r) || checkPort(target.Port) != nil {
		p.refuse(w, r, http.StatusBadRequest, "Not a request for a tunnel", "Ask for a WebSocket, and a port of 1 to 65535.")
		return
	}
	e := p.acquire(w, r, target)
	if e == nil {
		return
	}
	defer p.pool.release(e)
	outcome := &p.o.Counters.Abandoned
	defer func() { outcome.Add(1) }()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	c, err := p.dial(context.WithValue(ctx, exchangeKey{}, &exchange{visit: Visit{Target: target}, entry: e}), "", "")
	if err != nil {
		if e.ctx.Err() != nil || r.Context().Err() == nil {
			outcome = &p.o.Counters.Failed
		}
		p.explain(w, r, target, e, err)
		return
	}
	defer c.Close()
	c.(*boxConn).keep()
	t := &Tunnel{}
	// It needs no CheckOrigin: the default accepts requests without Origin, which browsers
	// cannot make, and those of the same host.
	u := websocket.Upgrader{HandshakeTimeout: 10 * time.Second, WriteBufferSize: copyBuffer, WriteBufferPool: &tunnelPool}
	t.ws, err = wsconn.Upgrade(&u, w, r, func(nc net.Conn) net.Conn {
		t.wire = wsconn.New(nc, p.o.Idle)
		return t.wire
	})
	if err != nil {
		outcome = &p.o.Counters.Refused
		return // the upgrader has answered
	}
	outcome = &p.o.Counters.Answered
	go t.ping(ctx, pingEvery)
	if err := t.relay(ctx, c, p.o.Idle); err != nil {
		p.o.Logger.Debug("tunnel broke", "tenant", target.Tenant, "session", target.Session, "port", target.Port, "err", err)
	}
}

func (t *Tunnel) ping(ctx context.Context, every time.Duration) {
	for !wsconn.Within(every, ctx.Done()) {
		// A busy connection needs none, and relay notices a broken one.
		t.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Second))
	}
}

// relay carries c over the tunnel until both streams are complete, or either connection
// fails, or the peer is silent for the time quiet, or ctx ends. It closes both.
func (t *Tunnel) relay(ctx context.Context, c net.Conn, quiet time.Duration) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	broken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(broken)
		resetTCP(c) // first: its user must not get more
		t.wire.Hurry(hurry)
		why := wsconn.Closing{Code: websocket.CloseInternalServerErr, Text: "the connection at the other end failed"}
		t.ws.WriteControl(websocket.CloseMessage, why.Message(), time.Now().Add(2*hurry))
		t.ws.Close()
	})
	h := &halves{t: t, c: wsconn.New(c, quiet), quiet: quiet}
	var sender sync.WaitGroup
	sender.Go(func() {
		if err := h.send(); err != nil {
			fail(err)
		}
	})
	if err := h.receive(); err != nil {
		fail(err)
	}
	sender.Wait()
	if !stop() {
		<-broken
		return context.Cause(ctx)
	}
	t.ws.Close()
	return c.Close()
}

// resetTCP makes the peer's read fail instead of ending.
func resetTCP(c net.Conn) {
	if b, ok := c.(*boxConn); ok {
		defer b.Close()
		c = b.Conn
	}
	if tcp, ok := c.(interface{ SetLinger(int) error }); ok {
		tcp.SetLinger(0)
	}
	c.Close()
}

// halves are the two directions of a tunnel.
type halves struct {
	t     *Tunnel
	c     *wsconn.Conn
	quiet time.Duration
	ended atomic.Int32 // directions that are complete
}

// end notes that a direction is complete. The second one closes the WebSocket.
func (h *halves) end() error {
	if h.ended.Add(1) < 2 {
		return nil
	}
	h.t.ws.SetReadDeadline(time.Now().Add(linger))
	err := h.t.ws.WriteControl(websocket.CloseMessage, (&wsconn.Closing{Code: websocket.CloseNormalClosure}).Message(), time.Now().Add(linger))
	if errors.Is(err, websocket.ErrCloseSent) { // in answer to the peer's
		return nil
	}
	return err
}

func (h *halves) send() error {
	buf := buffers.Get()
	defer buffers.Put(buf)
	for {
		n, err := h.c.Read(buf)
		if n > 0 {
			if err := h.t.ws.WriteMessage(websocket.BinaryMessage, buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			if err := h.t.ws.WriteMessage(websocket.TextMessage, []byte(eofText)); err != nil {
				return err
			}
			return h.end()
		}
		if err != nil {
			return err
		}
	}
}

func (h *halves) receive() error {
	buf := buffers.Get()
	defer buffers.Put(buf)
	ws, done := h.t.ws, false
	ws.SetReadLimit(maxMessage)
	extend := func() {
		if h.ended.Load() < 2 {
			ws.SetReadDeadline(time.Now().Add(h.quiet))
		}
	}
	answer := ws.PingHandler()
	ws.SetPingHandler(func(s string) error { extend(); return answer(s) })
	ws.SetPongHandler(func(string) error { extend(); return nil })
	for {
		extend()
		kind, r, err := ws.NextReader()
		if err != nil && h.ended.Load() == 2 {
			return nil
		}
		if err != nil {
			return err
		}
		if done {
			return errProtocol
		}
		if kind == websocket.BinaryMessage {
			// Neither side may use methods of its own, which have their own buffers.
			if _, err := io.CopyBuffer(struct{ io.Writer }{h.c}, struct{ io.Reader }{r}, buf); err != nil {
				return err
			}
			continue
		}
		if n, err := io.ReadFull(r, buf[:len(eofText)+1]); err != io.ErrUnexpectedEOF || string(buf[:n]) != eofText {
			return errProtocol
		}
		done = true
		if half, ok := h.c.Conn.(interface{ CloseWrite() error }); ok {
			if err := half.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) {
				return err
			}
		}
		if err := h.end(); err != nil {
			return err
		}
	}
}
