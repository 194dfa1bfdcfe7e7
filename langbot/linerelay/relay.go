package linerelay

import (
	"context"
	"net/http"
	"sync"

	"github.com/boxd/boxd/engine"
)

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
	src Source

	ctx    context.Context // ends with Close; its cause is a *closing
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

// New returns the relay of a process. The caller closes it.
func New(src Source) *Relay {
	r := &Relay{src: src}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	return r
}

// Serve upgrades the request to a WebSocket and relays until the process has
// ended, the client is gone or replaced, or the relay is closed. A client that is
// attached already is closed with 1000, "another client attached".
func (r *Relay) Serve(w http.ResponseWriter, req *http.Request) {}

// Attached says whether a client is attached right now.
func (r *Relay) Attached() bool { return false }

// Shut makes the relay end with a close code and reason, without waiting. The first
// call counts.
func (r *Relay) Shut(code int, reason string) {}

// Close is Shut, and waits until all of it has ended: at most some two seconds, for
// a client that does not answer.
func (r *Relay) Close(code int, reason string) {}
