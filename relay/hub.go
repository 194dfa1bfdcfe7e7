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

// Options are the bounds of a Hub. A zero field has the default that is given.
type Options struct {
	// Window is how many bytes of a stream a client with flow control may have
	// been sent without having acknowledged them: default 1 MiB, at most 4 MiB. It
	// should not be above the size of the ring, or a client that acknowledges
	// seldom leaves the process waiting.
	Window int64
	// StdinWindow is how many bytes of stdin wait for the process: default 256 KiB.
	StdinWindow int
	// MaxConns is how many connections there may be at once: 64. Those that ask to
	// be the writer find a few places more, so that watching cannot lock them out.
	MaxConns int
	// Ping is the time between two pings, 20 s; Dead is how long a peer may be
	// silent, 60 s.
	Ping, Dead time.Duration
	// Stall is how long a peer may take nothing of what is written to it: 30 s.
	Stall time.Duration
	// Linger is how long the peer's answer to a close is waited for: 5 s.
	Linger time.Duration
	// Refuse answers a request that is not upgraded; nil is http.Error.
	Refuse func(w http.ResponseWriter, r *http.Request, status int, text string)
	// Counters, if not nil, counts; many hubs may share one.
	Counters *Counters
	// Logger is told of connections at level debug; nil means nobody is.
	Logger *slog.Logger
}

// maxWindow bounds what a client has to be ready to hold.
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

// Counters count what all hubs that share them do.
type Counters struct {
	StdinBytes, StdoutBytes, StderrBytes atomic.Int64 // relayed payload
	LostBytes                            atomic.Int64 // told to clients as gaps
	Connections                          atomic.Int64 // open now
	Attached, Refused, Takeovers         atomic.Int64 // since the start
}

// Grant is what an attached client may do.
type Grant struct {
	Write    bool // be the writer: stdin, size, signals
	TakeOver bool // become the writer in place of another
	// Note, if not nil, is told of a take-over and of a signal (0 for a take-over)
	// before it happens. With an error it does not happen.
	Note func(act Act, signal int) error
}

// Act is something that a client does and that may have to be recorded.
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
	// ErrClosed is that of a hub that is being closed.
	ErrClosed = errors.New("relay is closing")
	// ErrNoStream is that of a stream that the process does not have.
	ErrNoStream = errors.New("no such stream")
	// ErrRange is that of an offset above the end of a stream.
	ErrRange = errors.New("offset above the end")
)

// Hub is the relay of one process: it knows who is attached and who may write. It
// is safe for concurrent use.
type Hub struct {
	src Source
	o   Options

	ctx     context.Context // ends with Close, because of restarting
	cancel  context.CancelCauseFunc
	removed chan struct{} // closed by Remove
	wg      sync.WaitGroup
	stdin   chan struct{} // has an element while stdin is being used

	mu      sync.Mutex
	closed  bool // by Close or Remove: nobody is let in any more
	gone    bool // by Remove
	conns   int
	users   int              // who have called enter
	release func()           // what users hold of the source; nil without users
	named   map[string]*conn // by client id
	writer  *conn
	last    string // client of the latest writer
	wrote   bool   // there has been a writer
}

// NewHub returns the relay of src. The caller closes it.
func NewHub(src Source, o Options) *Hub {
	o.setDefaults()
	h := &Hub{src: src, o: o, removed: make(chan struct{}), stdin: make(chan struct{}, 1), named: make(map[string]*conn)}
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	return h
}

// Close ends all connections, telling clients to come again (close code 1012),
// and waits for them. It may be called more than once.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.cancel(closeRestart)
	h.wg.Wait()
}

// Remove ends all connections with an exit frame, because the process is
// forgotten, and waits for them. One that does not take the frame in time is ended
// without.
func (h *Hub) Remove() {
	h.mu.Lock()
	if !h.gone {
		h.closed, h.gone = true, true
		close(h.removed)
	}
	h.mu.Unlock()
	late := time.AfterFunc(h.o.Linger, func() { h.cancel(closeRestart) })
	h.wg.Wait()
	late.Stop()
	h.cancel(closeRestart)
}

// writerReserve is how many connections above MaxConns there may be of those that
// ask to be the writer. More than one: a writer that was taken over stays.
const writerReserve = 8

// enter counts a user of the hub, who has conns connections and calls leave.
func (h *Hub) enter(conns int, write bool) *refusal {
	most := h.o.MaxConns
	if write {
		most += writerReserve
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.gone:
		return refuse(410, "the process has been removed")
	case h.closed:
		return refuse(503, "the daemon is stopping: come again")
	case h.conns+conns > most:
		return refuse(429, "%d connections to this process: the limit is %d", h.conns, most)
	}
	h.conns += conns
	h.wg.Add(1)
	if h.users++; h.users == 1 && h.src.Hold != nil {
		h.release = h.src.Hold()
	}
	return nil
}

func (h *Hub) leave(conns int) {
	h.mu.Lock()
	h.conns -= conns
	if h.users--; h.users == 0 && h.release != nil {
		h.release()
		h.release = nil
	}
	h.mu.Unlock()
	h.wg.Done()
}

// mayClaim says why c cannot become the writer, if so. A take-over is noted.
func (h *Hub) mayClaim(c *conn, g Grant) *refusal {
	h.mu.Lock()
	ref := h.mayClaimLocked(c, g)
	takeOver := h.takesOverLocked(c)
	h.mu.Unlock()
	if ref != nil || !takeOver {
		return ref
	}
	if err := g.note(ActTakeOver, 0); err != nil {
		return refuse(507, "takeover: %v", err)
	}
	c.noted = true
	return nil
}

// takesOverLocked says that c would be the writer in place of another client.
func (h *Hub) takesOverLocked(c *conn) bool {
	return h.writer != nil && (c.req.client == "" || h.writer.req.client != c.req.client)
}

func (h *Hub) mayClaimLocked(c *conn, g Grant) *refusal {
	switch {
	case !h.takesOverLocked(c):
		return nil
	case !c.req.takeOver:
		return refuse(409, "there is a writer already: take over, or observe")
	case !g.TakeOver:
		return refuse(403, "takeover: this caller may not")
	}
	return nil
}

// replace ends an older connection of c's client: it is lost, or soon to be closed,
// and nobody knows yet.
func (h *Hub) replace(c *conn) {
	if c.req.client == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if before := h.named[c.req.client]; before != nil {
		before.end(closeReplaced)
	}
	h.named[c.req.client] = c
}

// claim makes c the writer, unless that was refused meanwhile. Who was it before
// is told. It returns once nobody else can write to stdin.
func (h *Hub) claim(c *conn, g Grant) *refusal {
	h.mu.Lock()
	ref := h.mayClaimLocked(c, g)
	switch {
	case ref == nil && c.ctx.Err() != nil:
		ref = refuse(409, "replaced by a newer connection of this client")
	case ref == nil && h.takesOverLocked(c) && !c.noted:
		ref = refuse(409, "there is a writer by now: come again")
	}
	if ref != nil {
		h.mu.Unlock()
		return ref
	}
	before := h.writer
	h.writer = c
	c.interrupted = h.wrote && (c.req.client == "" || c.req.client != h.last)
	h.last, h.wrote = c.req.client, true
	c.writer.Store(true)
	if before != nil {
		before.demote()
		if c.interrupted {
			h.o.Counters.Takeovers.Add(1)
		}
	}
	h.mu.Unlock()
	c.awaitStdin()
	return nil
}

// dismiss forgets c. Nothing of it writes to stdin any more.
func (h *Hub) dismiss(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.writer == c {
		h.writer = nil
	}
	if h.named[c.req.client] == c {
		delete(h.named, c.req.client)
	}
}
