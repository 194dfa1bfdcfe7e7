package relay

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/wsconn"
)

// conn is one attached client. The goroutine of the request reads frames (read). Others
// ping and end the connection (supervise), send the output streams (pump, one for each) and,
// for a writer, feed stdin (feed). All of them end with ctx.
type conn struct {
	hub         *Hub
	req         request
	grant       Grant
	interrupted bool // another client has been the writer since this one last was
	noted       bool // the take-over was passed to Grant.Note

	ctx    context.Context // its cause is a *closing
	cancel context.CancelCauseFunc
	// live ends with ctx, and when no more output will come.
	live     context.Context
	stopLive context.CancelFunc

	ws  *websocket.Conn
	net *wsconn.Conn
	wg  sync.WaitGroup

	writer   atomic.Bool
	demoted  chan struct{} // has an element when the client must be told
	refused  chan string   // refusals that the client must be told
	readDone chan struct{} // closed when read returns

	stdout, stderr *outStream    // stderr may be nil
	pumping        atomic.Int32  // output streams that have not ended
	drained        chan struct{} // closed when all have

	stdin stdinQueue

	touched atomic.Int64 // when Source.Touch was last called, in Unix nanoseconds

	sending chan struct{} // has an element while a message is being written
	last    bool          // the exit was sent, and nothing may follow; guarded by sending
}

// maxRefusals is how many refusals may wait until the client accepts them. At the limit,
// the relay stops reading from the client, which sends requests and reads no answers.
const maxRefusals = 16

func newConn(h *Hub, req request, g Grant) *conn {
	c := &conn{
		hub: h, req: req, grant: g,
		demoted:  make(chan struct{}, 1),
		refused:  make(chan string, maxRefusals),
		readDone: make(chan struct{}),
		drained:  make(chan struct{}),
		sending:  make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancelCause(h.ctx)
	c.live, c.stopLive = context.WithCancel(c.ctx)
	c.stdin.ctx, c.stdin.cancel = context.WithCancel(c.ctx)
	c.stdin.wake = make(chan struct{}, 1)
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

// demote makes c an observer. The caller holds the hub's lock.
func (c *conn) demote() {
	c.writer.Store(false)
	c.stdin.cancel()
	wake(c.demoted)
}

// start sends the Hello and starts every goroutine except the one that reads.
func (c *conn) start() {
	streams := c.streams()
	c.pumping.Store(int32(len(streams)))
	context.AfterFunc(c.ctx, func() { c.net.Hurry(lastWrite) })
	if c.ctx.Err() == nil {
		c.send(appendHello(nil, c.hello())) // before any other goroutine can send
	}
	c.wg.Go(c.supervise)
	for _, s := range streams {
		c.wg.Go(func() { c.pump(s) })
	}
	if c.writer.Load() && c.hub.src.Stdin != nil {
		c.wg.Go(c.feed)
	}
}

// lastWrite bounds writes to a connection that is being closed.
const lastWrite = time.Second

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
		c.stdin.received, c.stdin.accepted = h.StdinAccepted, h.StdinAccepted
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

// send writes one message. A failure ends the connection; once it has ended, send does
// nothing.
func (c *conn) send(msg []byte) { c.write(msg, false) }

func (c *conn) write(msg []byte, last bool) {
	select {
	case c.sending <- struct{}{}:
		defer func() { <-c.sending }()
	case <-c.ctx.Done():
		return
	}
	// With both ready, the select above chooses either.
	if c.last || c.ctx.Err() != nil {
		return
	}
	c.last = last
	if err := c.ws.WriteMessage(websocket.BinaryMessage, msg); err != nil {
		c.cancel(closeLost)
	}
}

// supervise pings, and tells the client of its demotion and of refusals. It ends the
// connection: with an exit once everything has been sent, and with a close frame in any
// case.
func (c *conn) supervise() {
	defer c.net.Close()
	defer c.stopLive()
	ping := time.NewTicker(c.hub.o.Ping)
	defer ping.Stop()
	over, removed, drained := c.hub.src.Done, c.hub.removed, c.drained
	for c.ctx.Err() == nil {
		select {
		case <-c.ctx.Done():
		case <-ping.C:
			// A failed ping proves nothing: other data is under way then, whose progress is
			// watched.
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
			c.write(appendExit(nil, c.exit()), true)
			c.cancel(closeExited)
		}
	}
	c.finish()
}

func (c *conn) tellRefusal(text string) {
	c.send(append([]byte{typeRefused}, text[:min(len(text), maxRefused)]...))
}

// exit returns how the process ended. Of a process that was removed before its end,
// nothing is known.
func (c *conn) exit() exitFrame {
	f := exitFrame{Exit: Exit{Code: -1, Verdict: VerdictLost}, stdout: c.stdout.sentTo()}
	if c.stderr != nil {
		f.stderr = c.stderr.sentTo()
	}
	if isClosed(c.hub.src.Done) {
		f.Exit = c.hub.src.Exit()
	}
	// A value that does not fit into the frame is sent as unknown.
	if f.Code < -1 || f.Code > 255 {
		f.Code = -1
	}
	if f.Signal < 0 || f.Signal > 64 {
		f.Signal = 0
	}
	return f
}

// finish sends the reason, and waits a little for the peer's answer: closing a socket with
// unread bytes in it would destroy what the peer has not read yet.
func (c *conn) finish() {
	why := closeLost
	errors.As(context.Cause(c.ctx), &why)
	if why == closeLost {
		return
	}
	err := c.ws.WriteControl(websocket.CloseMessage, why.Message(), time.Now().Add(time.Second))
	if err == nil || errors.Is(err, websocket.ErrCloseSent) {
		wsconn.Within(c.hub.o.Linger, c.readDone)
	}
}

// read handles the client's messages until the connection ends.
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
			c.cancel(closeText)
		} else if why := c.handle(msg); why != nil {
			c.cancel(why)
		}
	}
}

// readFailed ends the connection because of an error of reading. Whatever the peer sends
// after a violation is discarded, see finish.
func (c *conn) readFailed(err error) {
	_, isClose := errors.AsType[*websocket.CloseError](err)
	switch {
	case isClose, wsconn.IsLost(err):
		c.cancel(closeLost)
		return
	case errors.Is(err, websocket.ErrReadLimit):
		c.cancel(closeBig)
	default:
		c.cancel(closeBroken(err))
	}
	io.Copy(io.Discard, c.net.Conn)
}

// readMessage reads a message into buf, which it extends up to most bytes. The message is
// part of the buffer that it returns.
func readMessage(r io.Reader, buf []byte, most int) (msg, grown []byte, err error) {
	n := 0
	for {
		if n == len(buf) {
			if n > most {
				return nil, buf, malformed("message above %d bytes", most)
			}
			// One byte more than the longest message, so that its end is seen.
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

// handle acts on one message. The result, if not nil, is why the connection has to end.
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
		return nil // demoted; the client may not know yet
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
		// supervise sends it: if this goroutine did, it would never finish reading from a client
		// that sends without reading.
		select {
		case c.refused <- "refused: " + err.Error(): // never empty
		case <-c.ctx.Done():
		}
	}
	return nil
}

// touch tells the source that there is traffic, at most once a second.
func (c *conn) touch() {
	if c.hub.src.Touch == nil {
		return
	}
	now, last := time.Now().UnixNano(), c.touched.Load()
	if now-last >= int64(time.Second) && c.touched.CompareAndSwap(last, now) {
		c.hub.src.Touch()
	}
}

// wake puts an element into c, unless there is one already.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
