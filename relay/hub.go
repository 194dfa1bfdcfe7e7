package relay

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

// Options are the bounds of a Hub. A zero field has the default that is given.
type Options struct {
	// Window is how many bytes of a stream a client with flow control may have
	// been sent without having acknowledged them: default 1 MiB, at most 4 MiB. It
	// should not be above the size of the ring, or a client that acknowledges
	// seldom could leave the process waiting.
	Window int64
	// StdinWindow is how many bytes of stdin wait for the process: 256 KiB.
	StdinWindow int
	// MaxConns is how many connections there may be at once: 64.
	MaxConns int
	// Ping is the time between two pings, 20 s; Dead is how long a peer may be
	// silent, 60 s.
	Ping, Dead time.Duration
	// Stall is how long a peer may take nothing of what is written to it: 30 s.
	Stall time.Duration
	// Linger is how long a closed connection is waited for: 5 s.
	Linger time.Duration
	// Counters, if not nil, counts; many hubs may share one.
	Counters *Counters
	// Logger is told of connections at level debug; nil means nobody is.
	Logger *slog.Logger
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
}

// Stream names an output stream.
type Stream byte

// The output streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// LogOptions say which part of an output Logs writes.
type LogOptions struct {
	Stream Stream // zero is Stdout
	// Offset is where to begin; a negative one counts from the end.
	Offset int64
	// Follow waits for more until the stream ends.
	Follow bool
	// Limit bounds the bytes written; zero is no limit.
	Limit int64
	// Start, if not nil, is called before the first write with the offset of the
	// first byte and how many bytes between Offset and it are gone.
	Start func(first, gone int64)
}

// Errors of a Hub.
var (
	// ErrClosed is that of a hub that is being closed.
	ErrClosed = errors.New("relay is closing")
	// ErrNoStream is that of a stream that the process does not have.
	ErrNoStream = errors.New("no such stream")
)

// Hub is the relay of one process: it knows who is attached and who may write. It
// is safe for concurrent use.
type Hub struct{}

// NewHub returns the relay of src. The caller closes it.
func NewHub(src Source, o Options) *Hub { return &Hub{} }

// Serve upgrades the request to a WebSocket and relays until the process has
// ended, the peer is gone, or the hub is closed. A request that it refuses is
// answered with a status and a line of text.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request, g Grant) {}

// Logs writes a part of an output to w as plain bytes, flushing if w can be
// flushed. It returns a *GapError if bytes were lost while it was writing.
func (h *Hub) Logs(ctx context.Context, w io.Writer, o LogOptions) error { return nil }

// Close ends all connections, telling clients to come again (close code 1012),
// and waits for them. It may be called more than once.
func (h *Hub) Close() {}

// Remove ends all connections with an exit frame, because the process is
// forgotten, and waits for them.
func (h *Hub) Remove() {}
