package linerelay

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/wsconn"
)

// maxReceive is the maximum size of a message from the client, in bytes.
const maxReceive = 16 << 20

// times are the same for every relay; tests change them.
type times struct {
	idle     time.Duration // after which an incomplete line is sent
	document time.Duration // after which it is sent if it looks like part of a document
	ping     time.Duration // between a pong and the next ping
	pong     time.Duration // between a ping and its pong
	stall    time.Duration // for which a peer may accept none of the bytes written to it
	end      time.Duration // between the end of the output and the end of the process
	hurry    time.Duration // for each write to a connection that ends
	linger   time.Duration // for the peer's answer to a close frame
}

var defaultTimes = times{
	idle: 50 * time.Millisecond, document: time.Second,
	ping: 30 * time.Second, pong: 15 * time.Second, stall: 30 * time.Second,
	end: 2 * time.Second, hurry: 500 * time.Millisecond, linger: time.Second,
}

// Source is a process as the relay sees it.
type Source struct {
	// Stdin is nil if the process has none.
	Stdin  engine.Input
	Stdout engine.Output
	// Done is closed when the process has ended and all of its output is in Stdout, or its
	// box is lost. The relay sends the rest of the output, then closes the connection.
	Done <-chan struct{}
	// Gone is closed when the process is removed, with its output. It may be nil.
	Gone <-chan struct{}
	// Hold keeps the output of a process that ends readable until the relay calls release.
	// It may be nil.
	Hold func() (release func())
	// Touch, if not nil, is called when there was traffic, at most once a second.
	Touch func()
}

// Relay is the relay of one process. It is safe for concurrent use.
type Relay struct {
	src   Source
	times times

	ctx     context.Context // ends with Shut; its cause is a *closing
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup // connections, and the goroutine that feeds stdin
	stdin   stdinQueue
	output  chan struct{} // has an element while a connection reads stdout
	touched atomic.Int64  // when Source.Touch was last called, in Unix nanoseconds

	mu      sync.Mutex
	closed  bool
	current *conn
}

// New returns the relay of a process. The caller closes it.
func New(src Source) *Relay {
	if src.Hold == nil {
		src.Hold = func() func() { return func() {} }
	}
	r := &Relay{src: src, times: defaultTimes, output: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.stdin = stdinQueue{ctx: r.ctx, in: src.Stdin, wg: &r.wg, moved: make(chan struct{})}
	return r
}

type closing = wsconn.Closing

var (
	closeExited   = &closing{Code: websocket.CloseNormalClosure}
	closeReplaced = &closing{Code: websocket.CloseNormalClosure, Text: "another client attached"}
	closeInvalid  = &closing{Code: websocket.CloseInvalidFramePayloadData, Text: "the message is not UTF-8"}
	closeBroken   = &closing{Code: websocket.CloseProtocolError, Text: "the client broke the protocol"}
	closeFailed   = &closing{Code: websocket.CloseInternalServerErr, Text: "the output of the process cannot be read"}
	// closeLost has no frame, because there is no client to read it.
	closeLost = &closing{Code: websocket.CloseNoStatusReceived, Text: "the client is gone"}
)

// Serve upgrades the request to a WebSocket and relays until the process has ended, the
// client has disconnected or is replaced, or the relay is closed. A client that is already
// attached is disconnected with 1000, "another client attached". A client of a closed relay
// receives the close frame and nothing else.
func (r *Relay) Serve(w http.ResponseWriter, req *http.Request) {
	open := r.addConn()
	if open {
		defer r.wg.Done()
		defer r.src.Hold()()
	}
	c := newConn(r)
	defer c.cancel(closeLost)
	// It needs no CheckOrigin: the default accepts requests without Origin, which browsers
	// cannot make, and those of the same host.
	upgrader := websocket.Upgrader{HandshakeTimeout: 10 * time.Second, Subprotocols: []string{"mcp"}}
	var err error
	if c.ws, err = wsconn.Upgrade(&upgrader, w, req, func(nc net.Conn) net.Conn {
		c.wire = newWire(wsconn.New(nc, r.times.stall))
		return c.wire
	}); err != nil {
		return // the upgrader has answered
	}
	if open {
		r.attach(c)
		defer r.detach(c)
	}
	c.serve()
}

// addConn counts a connection, unless the relay is closed.
func (r *Relay) addConn() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.wg.Add(1)
	return true
}

// attach makes c the attached client, in place of the previous one.
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

// Attached reports whether a client is attached right now.
func (r *Relay) Attached() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current != nil && r.current.ctx.Err() == nil
}

// Shut makes the relay end with a close code and a reason of at most 123 bytes. It does not
// wait. The first call determines code and reason.
func (r *Relay) Shut(code int, reason string) {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel(&closing{Code: code, Text: reason})
}

// Close calls Shut and waits until the relay has ended and no longer uses the process. If a
// client does not answer, that takes some two seconds.
func (r *Relay) Close(code int, reason string) {
	r.Shut(code, reason)
	r.wg.Wait()
}

// touch tells the source that there is traffic, at most once a second.
func (r *Relay) touch() {
	if r.src.Touch == nil {
		return
	}
	now, last := time.Now().UnixNano(), r.touched.Load()
	if now-last >= int64(time.Second) && r.touched.CompareAndSwap(last, now) {
		r.src.Touch()
	}
}
