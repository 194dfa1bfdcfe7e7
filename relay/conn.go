package relay

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// conn is one attached client. Its goroutines are the one of the request, which
// reads frames (read); one that pings and ends the connection (mind); one for each
// output stream (pump); and, for a writer, one for stdin (feed). All end with ctx.
type conn struct {
	hub         *Hub
	req         request
	grant       Grant
	interrupted bool // another client has been the writer since this one was
	noted       bool // that it takes over

	ctx    context.Context // its cause is a *closing
	cancel context.CancelCauseFunc
	// live ends with ctx, and when no more output will come.
	live     context.Context
	stopLive context.CancelFunc

	ws  *websocket.Conn
	net *progressConn
	wg  sync.WaitGroup

	writer   atomic.Bool
	demoted  chan struct{} // has an element when the client must be told
	refused  chan string   // what the client must be told could not be done
	readDone chan struct{} // closed when nothing is read any more

	stdout, stderr *outStream    // stderr may be nil
	pumping        atomic.Int32  // output streams that have not ended
	drained        chan struct{} // closed when all have

	stdin stdinQueue

	touched atomic.Int64 // when Source.Touch was called, in Unix nanoseconds

	turn chan struct{} // has an element while a message is being written
	last bool          // the exit was sent, and nothing may follow; whose turn it is
}

// maxRefusals is how many refusals may wait until the client takes them. Beyond it
// nothing more is read of the client: it is the one that asks and does not listen.
const maxRefusals = 16

func newConn(h *Hub, req request) *conn {
	c := &conn{
		hub: h, req: req,
		demoted:  make(chan struct{}, 1),
		refused:  make(chan string, maxRefusals),
		readDone: make(chan struct{}),
		drained:  make(chan struct{}),
		turn:     make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancelCause(h.ctx)
	c.live, c.stopLive = context.WithCancel(c.ctx)
	c.stdin.init(c.ctx)
	c.stdout = newOutStream(Stdout, h.src.Stdout, &h.o.Counters.StdoutBytes)
	if h.src.Stderr != nil {
		c.stderr = newOutStream(Stderr, h.src.Stderr, &h.o.Counters.StderrBytes)
	}
	return c
}

func (c *conn) streams() []*outStream {
	if c.stderr == nil {
		return []*outStream{c.stdout}
	}
	return []*outStream{c.stdout, c.stderr}
}

// end makes the connection end. The first reason counts. It does not wait.
func (c *conn) end(why *closing) { c.cancel(why) }

// demote makes c an observer. The hub's lock is held.
func (c *conn) demote() {
	c.writer.Store(false)
	c.stdin.cancel()
	select {
	case c.demoted <- struct{}{}:
	default:
	}
}

// start says hello and begins everything but reading.
func (c *conn) start() {
	streams := c.streams()
	c.pumping.Store(int32(len(streams)))
	context.AfterFunc(c.ctx, c.net.hurry)
	if c.ctx.Err() == nil {
		c.send(appendHello(nil, c.hello())) // before anybody else can send
	}
	c.wg.Go(c.mind)
	for _, s := range streams {
		c.wg.Go(func() { c.pump(s) })
	}
	if c.writer.Load() && c.hub.src.Stdin != nil {
		c.wg.Go(c.feed)
	}
}

func (c *conn) hello() Hello {
	src, o := &c.hub.src, &c.hub.o
	h := Hello{
		Writer: c.writer.Load(), TTY: src.TTY, HasStdin: src.Stdin != nil, HasStderr: src.Stderr != nil,
		Interrupted: c.interrupted,
		StdinWindow: int64(o.StdinWindow), Stdout: c.stdout.first,
	}
	if c.req.flow {
		h.Window = o.Window
	}
	if src.Stdin != nil {
		h.StdinAccepted = src.Stdin.Accepted()
		c.stdin.begin(h.StdinAccepted)
	}
	if c.stderr != nil {
		h.Stderr = c.stderr.first
	}
	if h.Writer {
		for _, s := range c.streams() {
			s.out.Release(s.first.Start)
		}
	}
	return h
}

// send writes one message. A failure ends the connection; after its end there are
// no messages.
func (c *conn) send(msg []byte) { c.write(msg, false) }

// sendExit writes the last message.
func (c *conn) sendExit() { c.write(appendExit(nil, c.exit()), true) }

func (c *conn) write(msg []byte, last bool) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-c.ctx.Done():
		return
	}
	// The select above takes either if it could take both.
	if c.last || c.ctx.Err() != nil {
		return
	}
	c.last = last
	if err := c.ws.WriteMessage(websocket.BinaryMessage, msg); err != nil {
		c.end(closeLost)
	}
}

// mind pings, tells of a demotion and of refusals, and ends the connection: with an exit when
// everything has been sent, and with a close frame in any case.
func (c *conn) mind() {
	defer c.net.Close()
	defer c.stopLive()
	ping := time.NewTicker(c.hub.o.Ping)
	defer ping.Stop()
	over, removed, drained := c.hub.src.Done, c.hub.removed, c.drained
	for c.ctx.Err() == nil {
		select {
		case <-c.ctx.Done():
		case <-ping.C:
			// A ping that finds no room is no sign of death: then there is data under
			// way, whose progress is watched.
			c.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Second))
		case <-c.demoted:
			c.send([]byte{typeWriter, 0})
		case text := <-c.refused:
			c.tellRefusal(text)
		case <-over:
			over = nil
			c.stopLive()
		case <-removed:
			removed = nil
			c.stopLive()
		case <-drained:
			drained = nil
		}
		if drained == nil && (over == nil || removed == nil) && c.ctx.Err() == nil {
			for len(c.refused) > 0 {
				c.tellRefusal(<-c.refused) // this goroutine is the only receiver
			}
			c.sendExit()
			c.end(closeExited)
		}
	}
	c.finish()
}

func (c *conn) tellRefusal(text string) {
	c.send(append([]byte{typeRefused}, text[:min(len(text), maxRefused)]...))
}

// exit is how the process ended; nothing is known of one that was removed before.
func (c *conn) exit() exitFrame {
	f := exitFrame{Exit: Exit{Code: -1, Verdict: VerdictLost}, stdout: c.stdout.sentTo()}
	if c.stderr != nil {
		f.stderr = c.stderr.sentTo()
	}
	select {
	case <-c.hub.src.Done:
		f.Exit = c.hub.src.Exit()
	default:
	}
	// What a frame cannot hold is no code and no signal.
	if f.Code < -1 || f.Code > 255 {
		f.Code = -1
	}
	if f.Signal < 0 || f.Signal > 64 {
		f.Signal = 0
	}
	return f
}

// finish says why, and waits a little for the answer: closing a socket with unread
// bytes in it would destroy what the peer has not read yet.
func (c *conn) finish() {
	why := closeLost
	errors.As(context.Cause(c.ctx), &why)
	if why == closeLost {
		return
	}
	err := c.ws.WriteControl(websocket.CloseMessage, why.message(), time.Now().Add(time.Second))
	if err != nil && !errors.Is(err, websocket.ErrCloseSent) {
		return
	}
	t := time.NewTimer(c.hub.o.Linger)
	defer t.Stop()
	select {
	case <-c.readDone:
	case <-t.C:
	}
}
