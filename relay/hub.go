package relay

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Options set the bounds of a [Hub]. The zero value of each field means its default.
type Options struct {
	// Window is the maximum number of bytes of a stream that are sent to a client with
	// flow control before it acknowledges some: default 1 MiB, at most 4 MiB. It should
	// not exceed the size of the process's ring buffer; otherwise a client that
	// acknowledges rarely makes the process wait.
	Window int64
	// StdinWindow is the maximum number of bytes of stdin that wait for the process:
	// default 256 KiB.
	StdinWindow int
	// MaxConns is the maximum number of connections: default 64. A few more are allowed
	// for clients that ask to be the writer, so that observers cannot lock them out.
	MaxConns int
	// Ping is the time between two pings, default 20 s. Dead is how long a peer may be
	// silent, default 60 s.
	Ping, Dead time.Duration
	// Stall is how long a peer may accept no bytes that are written to it: default 30 s.
	Stall time.Duration
	// Linger is how long to wait for the peer's answer to a close: default 5 s.
	Linger time.Duration
	// Refuse answers a request that is not upgraded; default http.Error.
	Refuse func(w http.ResponseWriter, r *http.Request, status int, text string)
	// Counters, if not nil, counts. Several hubs may share one.
	Counters *Counters
	// Logger logs connections at level debug; nil discards them.
	Logger *slog.Logger
}

// maxWindow bounds how much a client must be able to hold.
const maxWindow = 4 << 20

func (o *Options) setDefaults() {
	o.Window = min(orDefault(o.Window, 1<<20), maxWindow)
	o.StdinWindow = orDefault(o.StdinWindow, 256<<10)
	o.MaxConns = orDefault(o.MaxConns, 64)
	o.Ping = orDefault(o.Ping, 20*time.Second)
	o.Dead = orDefault(o.Dead, 60*time.Second)
	o.Stall = orDefault(o.Stall, 30*time.Second)
	o.Linger = orDefault(o.Linger, 5*time.Second)
	if o.Refuse == nil {
		o.Refuse = func(w http.ResponseWriter, _ *http.Request, status int, text string) { http.Error(w, text, status) }
	}
	if o.Counters == nil {
		o.Counters = new(Counters)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func orDefault[T int | int64 | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// Counters count the traffic and the connections of all hubs that share them.
type Counters struct {
	StdinBytes, StdoutBytes, StderrBytes atomic.Int64 // relayed payload
	LostBytes                            atomic.Int64 // reported to clients as gaps
	Connections                          atomic.Int64 // open now
	Attached, Refused, Takeovers         atomic.Int64 // since the start
}

// Grant says what an attached client may do besides observing.
type Grant struct {
	Write    bool // be the writer, who sends stdin, window sizes and signals
	TakeOver bool // replace another writer
	// Note, if not nil, is called before a take-over (with signal 0) and before a
	// signal. If it returns an error, the act is refused.
	Note func(act Act, signal int) error
}

// Act is an action of a client that may have to be recorded, see [Grant].
type Act string

// The acts.
const (
	ActTakeOver Act = "takeover"
	ActSignal   Act = "signal"
)

func (g *Grant) note(act Act, signal int) error {
	if g.Note == nil {
		return nil
	}
	return g.Note(act, signal)
}

// Stream names an output stream.
type Stream byte

// The output streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

// Errors of a Hub.
var (
	// ErrClosed: the hub is closing.
	ErrClosed = errors.New("relay is closing")
	// ErrNoStream: the process does not have that stream.
	ErrNoStream = errors.New("no such stream")
	// ErrRange: the offset is above the end of the stream.
	ErrRange = errors.New("offset above the end")
)

// Hub is the relay of one process. It tracks the attached clients and the one that may
// write. It is safe for concurrent use.
type Hub struct {
	src Source
	o   Options

	ctx     context.Context // ends with Close, because of restarting
	cancel  context.CancelCauseFunc
	removed chan struct{} // closed by Remove, under mu
	wg      sync.WaitGroup
	stdin   chan struct{} // has an element while stdin is being used

	mu         sync.Mutex
	closed     bool // by Close or Remove: no client is admitted
	conns      int
	named      map[string]*conn // by client id
	writer     *conn
	lastWriter string // client of the latest writer
	wrote      bool   // there has been a writer
}

// NewHub returns a relay of src. The caller closes it.
func NewHub(src Source, o Options) *Hub {
	o.setDefaults()
	if src.Hold == nil {
		src.Hold = func() func() { return func() {} }
	}
	h := &Hub{src: src, o: o, removed: make(chan struct{}), stdin: make(chan struct{}, 1), named: make(map[string]*conn)}
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	return h
}

// Close ends all connections with the close code 1012, on which clients reconnect, and
// waits for them. It may be called more than once.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.cancel(closeRestart)
	h.wg.Wait()
}

// Remove ends all connections with an exit frame, because the process was removed, and
// waits for them. A client that does not accept the frame in time is cut off without it.
func (h *Hub) Remove() {
	h.mu.Lock()
	if !isClosed(h.removed) {
		h.closed = true
		close(h.removed)
	}
	h.mu.Unlock()
	late := time.AfterFunc(h.o.Linger, func() { h.cancel(closeRestart) })
	h.wg.Wait()
	late.Stop()
	h.cancel(closeRestart)
}

// writerReserve is how many connections above MaxConns are allowed for clients that ask
// to be the writer. It is more than one because a displaced writer stays connected.
const writerReserve = 8

// addUser counts a user of the hub with conns connections. Unless it is refused, the user
// calls removeUser at the end.
func (h *Hub) addUser(conns int, write bool) *refusal {
	most := h.o.MaxConns
	if write {
		most += writerReserve
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case isClosed(h.removed):
		return refuse(410, "the process has been removed")
	case h.closed:
		return refuse(503, "the daemon is stopping: retry")
	case h.conns+conns > most:
		return refuse(429, "%d connections to this process: the limit is %d", h.conns, most)
	}
	h.conns += conns
	h.wg.Add(1)
	return nil
}

func (h *Hub) removeUser(conns int) {
	h.mu.Lock()
	h.conns -= conns
	h.mu.Unlock()
	h.wg.Done()
}

// mayClaim returns why c cannot become the writer, or nil. It notes a take-over.
func (h *Hub) mayClaim(c *conn) *refusal {
	h.mu.Lock()
	ref := h.mayClaimLocked(c)
	takeOver := h.takesOverLocked(c)
	h.mu.Unlock()
	if ref != nil || !takeOver {
		return ref
	}
	if err := c.grant.note(ActTakeOver, 0); err != nil {
		return refuse(507, "takeover: %v", err)
	}
	c.noted = true
	return nil
}

// takesOverLocked reports whether c would displace another client as the writer.
func (h *Hub) takesOverLocked(c *conn) bool {
	return h.writer != nil && (c.req.client == "" || h.writer.req.client != c.req.client)
}

func (h *Hub) mayClaimLocked(c *conn) *refusal {
	switch {
	case !h.takesOverLocked(c):
		return nil
	case !c.req.takeOver:
		return refuse(409, "there is a writer already: take over, or observe")
	case !c.grant.TakeOver:
		return refuse(403, "takeover: this caller may not")
	}
	return nil
}

// replaceOlder ends an older connection of c's client: it is dead, but the hub has not noticed
// yet.
func (h *Hub) replaceOlder(c *conn) {
	if c.req.client == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if before := h.named[c.req.client]; before != nil {
		before.cancel(closeReplaced)
	}
	h.named[c.req.client] = c
}

// claimWriter makes c the writer, unless that has become impossible, and notifies the previous
// writer. It returns when no other connection can write to stdin any more.
func (h *Hub) claimWriter(c *conn) *refusal {
	h.mu.Lock()
	ref := h.mayClaimLocked(c)
	switch {
	case ref == nil && c.ctx.Err() != nil:
		ref = refuse(409, "replaced by a newer connection of this client")
	case ref == nil && h.takesOverLocked(c) && !c.noted:
		ref = refuse(409, "another client has become the writer: retry")
	}
	if ref != nil {
		h.mu.Unlock()
		return ref
	}
	before := h.writer
	h.writer = c
	c.interrupted = h.wrote && (c.req.client == "" || c.req.client != h.lastWriter)
	h.lastWriter, h.wrote = c.req.client, true
	c.writer.Store(true)
	if before != nil {
		before.demote()
		if c.interrupted {
			h.o.Counters.Takeovers.Add(1)
		}
	}
	h.mu.Unlock()
	// Earlier writers, whose contexts have ended, may still be using stdin.
	select {
	case h.stdin <- struct{}{}:
		<-h.stdin
	case <-c.stdin.ctx.Done():
	}
	return nil
}

// removeConn forgets c, which no longer writes to stdin.
func (h *Hub) removeConn(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.writer == c {
		h.writer = nil
	}
	if h.named[c.req.client] == c {
		delete(h.named, c.req.client)
	}
}
