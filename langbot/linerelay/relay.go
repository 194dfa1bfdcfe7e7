package linerelay

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/gorilla/websocket"
)

// maxReceive is the most that a message of the client has, in bytes.
const maxReceive = 16 << 20

// times are those of every relay; tests change them.
type times struct {
	idle     time.Duration // a rest without newline is sent after
	document time.Duration // and one that looks like a part of more
	ping     time.Duration // between an answered ping and the next
	pong     time.Duration // until the answer
	stall    time.Duration // for which a peer may take nothing of what is written to it
	end      time.Duration // for the end of a process whose output has ended
	hurry    time.Duration // for all that is still to be written to a connection that ends
	linger   time.Duration // for the peer's answer to a close frame
}

var defaultTimes = times{
	idle: 50 * time.Millisecond, document: time.Second,
	ping: 30 * time.Second, pong: 15 * time.Second, stall: 30 * time.Second,
	end: 2 * time.Second, hurry: 500 * time.Millisecond, linger: time.Second,
}

// Source is a process as the relay sees it.
type Source struct {
	// Stdin is nil if the process takes none.
	Stdin  engine.Input
	Stdout engine.Output
	// Done is closed when the process has ended and all of its output is in Stdout.
	// What is left is sent, then the connection is closed.
	Done <-chan struct{}
	// Gone is closed when nothing can be read any more: the process was forgotten or
	// its box is lost. It may be nil.
	Gone <-chan struct{}
	// Touch is told, at most once a second, that there was traffic. It may be nil.
	Touch func()
}

// Relay is the relay of one process. It is safe for concurrent use.
type Relay struct {
	src   Source
	times times

	ctx     context.Context // ends with Shut; its cause is a *closing
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup // connections, and what feeds stdin
	stdin   stdinQueue
	output  chan struct{} // has an element while a connection reads stdout
	touched atomic.Int64  // when Source.Touch was called, in Unix nanoseconds

	mu      sync.Mutex
	closed  bool
	current *conn
}

// New returns the relay of a process. The caller closes it.
func New(src Source) *Relay {
	r := &Relay{src: src, times: defaultTimes, output: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.stdin = stdinQueue{ctx: r.ctx, in: src.Stdin, wg: &r.wg, moved: make(chan struct{})}
	return r
}

// closing is why a connection ends, as its close frame says it.
type closing struct {
	code   int
	reason string
}

func (c *closing) Error() string { return fmt.Sprintf("close %d: %s", c.code, c.reason) }

var (
	closeExited   = &closing{websocket.CloseNormalClosure, ""}
	closeReplaced = &closing{websocket.CloseNormalClosure, "another client attached"}
	closeInvalid  = &closing{websocket.CloseInvalidFramePayloadData, "the message is no UTF-8"}
	closeBroken   = &closing{websocket.CloseProtocolError, "the client broke the protocol"}
	closeFailed   = &closing{websocket.CloseInternalServerErr, "the output of the process cannot be read"}
	// closeLost has no frame: there is nobody who would read it.
	closeLost = &closing{websocket.CloseNoStatusReceived, "the client is gone"}
)

// Serve upgrades the request to a WebSocket and relays until the process has
// ended, the client is gone or replaced, or the relay is closed. A client that is
// attached already is closed with 1000, "another client attached". Of a relay that
// is closed a client gets the close frame and nothing else.
func (r *Relay) Serve(w http.ResponseWriter, req *http.Request) {
	if !r.enter() {
		r.serveClosed(w, req)
		return
	}
	defer r.wg.Done()
	c := newConn(r)
	defer c.cancel(closeLost)
	if !c.upgrade(w, req) {
		return // the upgrader has answered
	}
	r.attach(c)
	defer r.detach(c)
	c.serve()
}

// enter counts a connection, unless the relay is closed.
func (r *Relay) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.wg.Add(1)
	return true
}

// serveClosed says goodbye to a client that comes too late.
func (r *Relay) serveClosed(w http.ResponseWriter, req *http.Request) {
	c := newConn(r)
	defer c.cancel(closeLost)
	if c.upgrade(w, req) {
		c.serve()
	}
}

// upgrade answers the request, with the WebSocket or with an error. There is no
// CheckOrigin: the default lets in requests without Origin, which browsers cannot
// make, and those of the same host.
func (c *conn) upgrade(w http.ResponseWriter, req *http.Request) bool {
	upgrader := websocket.Upgrader{HandshakeTimeout: 10 * time.Second, Subprotocols: []string{"mcp"}}
	ws, err := upgrader.Upgrade(&hijacker{w, c}, req, nil)
	c.ws = ws
	return err == nil
}

// hijacker gives the upgrader a connection that is a wire.
type hijacker struct {
	http.ResponseWriter
	c *conn
}

func (j *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, rw, err := http.NewResponseController(j.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	j.c.wire = newWire(nc, j.c.relay.times.stall)
	return j.c.wire, rw, nil
}

// attach makes c the one that is attached.
func (r *Relay) attach(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		r.current.cancel(closeReplaced)
	}
	r.current = c
}

func (r *Relay) detach(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == c {
		r.current = nil
	}
}

// Attached says whether a client is attached right now.
func (r *Relay) Attached() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current != nil && r.current.ctx.Err() == nil
}

// Shut makes the relay end with a close code and a reason of at most 123 bytes,
// without waiting. The first call counts.
func (r *Relay) Shut(code int, reason string) {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel(&closing{code, reason})
}

// Close is Shut, and waits until all of it has ended: nothing of the process is used
// any more. That takes some two seconds at most, if a client does not answer.
func (r *Relay) Close(code int, reason string) {
	r.Shut(code, reason)
	r.wg.Wait()
}

// touch tells the source that there is traffic, once a second.
func (r *Relay) touch() {
	if r.src.Touch == nil {
		return
	}
	now, last := time.Now().UnixNano(), r.touched.Load()
	if now-last >= int64(time.Second) && r.touched.CompareAndSwap(last, now) {
		r.src.Touch()
	}
}
