package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/relay"
	"github.com/boxd/boxd/session"
)

// hubTable has the relay hub of each managed process that a client has attached to. A hub
// lives until its process is forgotten or replaced, or the table is closed.
type hubTable struct {
	opt relay.Options

	mu     sync.Mutex
	hubs   map[*session.Process]*relay.Hub
	closed bool
	done   chan struct{} // closed when the table is
	wg     sync.WaitGroup
}

func newHubTable(o relay.Options) *hubTable {
	return &hubTable{opt: o, hubs: map[*session.Process]*relay.Hub{}, done: make(chan struct{})}
}

// get returns the hub of p, and creates it if necessary.
func (t *hubTable) get(p *session.Process) (*relay.Hub, error) {
	live, v := p.Live(), p.View()
	if live == nil {
		if v.State.Ended() {
			return nil, refuse(apitypes.CodeOutputGone, "", "process %s: its output was lost with its box", spec.Quote(v.ID))
		}
		return nil, refuse(apitypes.CodeNotStarted, "", "process %s: is being started; try again", spec.Quote(v.ID))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, relay.ErrClosed
	}
	hub := t.hubs[p]
	if hub == nil {
		o := t.opt
		// With a window above the ring's size, a client that acknowledges late would stop
		// the process.
		o.Window = min(cmp.Or(o.Window, v.History), v.History)
		o.Logger = o.Logger.With("tenant", v.Session.Tenant, "session", v.Session.ID, "process", v.ID, "box", v.Box)
		hub = relay.NewHub(sourceOf(p, live, v.TTY), o)
		t.hubs[p] = hub
		t.wg.Go(func() { t.watch(p, hub) })
	}
	return hub, nil
}

// watch removes the hub of p once p is gone.
func (t *hubTable) watch(p *session.Process, hub *relay.Hub) {
	select {
	case <-p.Gone():
		hub.Remove()
	case <-t.done:
		hub.Close()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.hubs, p)
}

// close ends all relays, asks their clients to reconnect, and waits.
func (t *hubTable) close() {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.done)
	}
	t.mu.Unlock()
	t.wg.Wait()
}

// sourceOf returns a managed process in the form of package relay. The process counts as
// ended only once that is recorded, so that an exit which a client has seen survives a
// crash of the daemon.
func sourceOf(p *session.Process, live engine.ManagedProcess, tty bool) relay.Source {
	stdio := live.Stdio()
	src := relay.Source{
		Stdin: stdio.Stdin, Stdout: stdio.Stdout, TTY: tty, Done: p.Done(),
		Exit: func() relay.Exit {
			r := p.Result()
			return relay.Exit{Code: r.ExitCode, Signal: int(r.Signal), Verdict: string(r.Verdict), Limit: r.Limit}
		},
		Signal: func(sig syscall.Signal) error { return live.Control().Signal(sig) },
		Hold:   live.Hold,
		Touch:  p.Touch,
	}
	if stdio.Stderr != nil {
		src.Stderr = stdio.Stderr
	}
	if _, ok := stdio.Stdout.(engine.TimedOutput); ok {
		src.Times = func(s relay.Stream) []relay.Mark { return marksOf(stdio, s) }
	}
	if tty {
		src.Resize = func(rows, cols uint16) error {
			return live.Control().Resize(engine.WindowSize{Rows: rows, Cols: cols})
		}
	}
	return src
}

// marksOf returns when the output of a stream was written.
func marksOf(stdio engine.Stdio, s relay.Stream) []relay.Mark {
	out := stdio.Stdout
	if s == relay.Stderr {
		out = stdio.Stderr
	}
	timed, ok := out.(engine.TimedOutput)
	if !ok {
		return nil
	}
	times := timed.Times()
	marks := make([]relay.Mark, len(times))
	for i, t := range times {
		marks[i] = relay.Mark(t)
	}
	return marks
}

// relay attaches a client to a managed process until one of them ends.
func (c *call) relay(p *session.Process) error {
	hub, err := c.s.hubs.get(p)
	if err != nil {
		return err
	}
	select {
	case c.s.relays <- struct{}{}:
		defer func() { <-c.s.relays }()
	default:
		return refuse(apitypes.CodeTooManyConnections, "", "%d relays are open: close some", cap(c.s.relays))
	}
	may := c.who.Role >= Operator
	ctx, leave := c.whileAdmitted(c.r.Context())
	defer leave()
	hub.Serve(c.w, c.r.WithContext(ctx), relay.Grant{Write: may, TakeOver: may, Note: func(act relay.Act, sig int) error {
		return p.Note(c.caller(), string(act), signalDetails(syscall.Signal(sig)))
	}})
	return nil
}

// relayCodes map the statuses with which a relay refuses to codes.
var relayCodes = map[int]string{
	http.StatusForbidden:                    apitypes.CodeForbidden,
	http.StatusConflict:                     apitypes.CodeWriterTaken,
	http.StatusGone:                         apitypes.CodeOutputGone,
	http.StatusRequestedRangeNotSatisfiable: apitypes.CodeNoOffset,
	http.StatusTooManyRequests:              apitypes.CodeTooManyConnections,
	http.StatusInternalServerError:          apitypes.CodeInternal,
	http.StatusInsufficientStorage:          apitypes.CodeStorage,
	http.StatusServiceUnavailable:           apitypes.CodeShuttingDown,
}

// refuseRelay answers with a problem when a relay refuses before it has become a WebSocket.
func refuseRelay(w http.ResponseWriter, r *http.Request, status int, text string) {
	code, ok := relayCodes[status]
	if !ok {
		code = apitypes.CodeRelayRequest
	}
	writeProblem(w, problemOf(refuse(code, "", "%s", text), w.Header().Get(RequestHeader)))
}

// logs sends a part of an output of a managed process.
func (c *call) logs(p *session.Process) error {
	o, err := c.logOptions()
	if err != nil {
		return err
	}
	hub, err := c.s.hubs.get(p)
	if err != nil {
		return err
	}
	ctx, cancel := c.untilStopped()
	defer cancel()
	out := &lazyWriter{c: c}
	o.Start = func(first, gone int64) {
		c.w.Header().Set(OffsetHeader, strconv.FormatInt(first, 10))
		c.w.Header().Set(GapHeader, strconv.FormatInt(gone, 10))
		out.begin()
		c.w.Flush()
	}
	if err := hub.Logs(ctx, out, o); err != nil {
		return err
	}
	out.begin()
	return nil
}

// Headers of logs: the position of the first byte in the stream, and how many of the
// requested bytes are no longer kept.
const (
	OffsetHeader = "X-Boxd-Offset"
	GapHeader    = "X-Boxd-Gap"
)

func (c *call) logOptions() (o relay.LogOptions, err error) {
	switch stream := c.query("stream"); stream {
	case "", "stdout":
		o.Stream = relay.Stdout
	case "stderr":
		o.Stream = relay.Stderr
	default:
		return o, &engine.FieldError{Field: "stream", Value: spec.Quote(stream), Rule: "must be stdout or stderr"}
	}
	var errs [5]error
	o.Offset, errs[0] = c.queryInt("offset", -1<<62)
	o.Limit, errs[1] = c.queryInt("limit", 0)
	o.Follow, errs[2] = c.queryBool("follow")
	o.Timestamps, errs[3] = c.queryBool("timestamps")
	o.Since, errs[4] = c.queryMoment("since")
	if err := errors.Join(errs[:]...); err != nil || c.query("tail") == "" {
		return o, err
	}
	tail, err := c.queryInt("tail", 0)
	o.Tail = &tail
	return o, err
}

// queryMoment returns a query parameter that is a time, or a duration before now; zero if it is absent.
func (c *call) queryMoment(name string) (time.Time, error) {
	text := c.query(name)
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return time.Now().Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, &engine.FieldError{Field: name, Value: spec.Quote(text), Rule: "must be a duration before now such as 10m or 1h30m, or a time such as 2006-01-02T15:04:05Z"}
	}
	return t, nil
}

// untilStopped returns the context of an endless stream: it ends when the client has gone or is not
// admitted any more, and when the server stops such streams.
func (c *call) untilStopped() (context.Context, context.CancelFunc) {
	admitted, leave := c.untilEnded()
	ctx, cancel := context.WithCancelCause(admitted)
	stop := context.AfterFunc(c.s.streams, func() { cancel(relay.ErrClosed) })
	return ctx, func() { stop(); cancel(nil); leave() }
}

// untilEnded returns a context that ends with the client, or because of errEnded with its credentials.
func (c *call) untilEnded() (context.Context, context.CancelFunc) {
	parent, gone := c.untilGone()
	ctx, leave := c.whileAdmitted(parent)
	return ctx, func() { leave(); gone() }
}

// lazyWriter sends the header of an answer of plain bytes with the first of them, so that an
// earlier error can still be answered.
type lazyWriter struct {
	c    *call
	kind string // content type; "" is octets
	// encoding is the content encoding of the body; "" is none.
	encoding string
	sent     int64 // bytes, without the header
}

var _ io.Writer = (*lazyWriter)(nil)

func (w *lazyWriter) begin() {
	if !w.c.w.started() {
		w.c.w.Header().Set("Content-Type", cmp.Or(w.kind, octets))
		if w.encoding != "" {
			w.c.w.Header().Set("Content-Encoding", w.encoding)
		}
		w.c.w.WriteHeader(http.StatusOK)
	}
}

func (w *lazyWriter) Write(p []byte) (int, error) {
	w.begin()
	n, err := w.c.w.Write(p)
	w.sent += int64(n)
	return n, err
}

func (w *lazyWriter) Flush() { w.c.w.Flush() }
