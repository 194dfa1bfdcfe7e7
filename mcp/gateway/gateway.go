package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/internal/budget"
	"github.com/boxd/boxd/internal/keyed"
	"github.com/boxd/boxd/internal/rpcline"
	"github.com/boxd/boxd/mcp"
)

const (
	// bodyTimeout is how long a request may take to arrive.
	bodyTimeout = 30 * time.Second
	// writeTimeout is how long a client may take to accept a message.
	writeTimeout = 30 * time.Second
	// Bounds of the messages of clients that are in progress at once, above smallBody bytes each: of all
	// tenants, and of one.
	maxBodies     = 512 << 20
	maxBodiesEach = 128 << 20
	smallBody     = 256 << 10
	// keepAlive is how often a stream without messages gets a comment, so that nobody on the way ends it.
	keepAlive = 15 * time.Second
	// statelessSince is the first revision without sessions of the protocol.
	statelessSince = "2026-07-28"
)

// Options of a [Gateway]. Servers and Caller are required.
type Options struct {
	Version string
	Servers []Server
	// Caller returns the sender of a request, which was authenticated before.
	Caller func(*http.Request) (Caller, error)
	// Instance tells the processes of this gateway from those of other gateways that use the same daemon and the same names of
	// servers. A gateway that has the Instance of an earlier one ends what that one has left in the mode ModeRequest, so no
	// two of them may run at once. Empty: a new one.
	Instance string
	// Record writes the record of a call of a tool, when the call has ended; nil: there are no records. Recordable, which goes
	// with it, returns why no record can be written now: calls are refused then.
	Record     func(ToolCall) error
	Recordable func() error
	// End means that Close ends the processes.
	End bool
	// Logger; nil is slog.Default.
	Logger *slog.Logger
}

// Gateway serves MCP servers that run in boxes, each at a path "/NAME". It is safe for concurrent use.
type Gateway struct {
	opt        Options
	servers    map[string]*Server
	ctx        context.Context // ends with Close
	stop       context.CancelFunc
	installing keyed.Locks
	installed  sync.Map    // by installKey
	cleared    sync.Map    // see clear; by tenantServer
	adopting   keyed.Locks // by the IDs of sessions, and for clear by installKey
	bodies     *budget.Budget
	held       *budget.Budget // bytes in queues

	mu       sync.Mutex
	hosts    map[tenantServer]*host
	starts   map[tenantServer]*backoff
	sessions map[string]*session
	closed   bool
	work     sync.WaitGroup // only added to while closed is false
}

// New returns a gateway. The caller closes it.
func New(o Options) *Gateway {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Instance = cmp.Or(o.Instance, newID())
	g := &Gateway{opt: o, servers: map[string]*Server{}, hosts: map[tenantServer]*host{}, starts: map[tenantServer]*backoff{}, sessions: map[string]*session{},
		bodies: budget.New(maxBodies, maxBodiesEach), held: budget.New(maxHeld, maxHeldEach)}
	for _, s := range o.Servers {
		s = s.WithDefaults()
		g.servers[s.Name] = &s
	}
	g.ctx, g.stop = context.WithCancel(context.Background())
	g.going(g.sweep)
	return g
}

// going runs f in a goroutine that Close waits for, or at once if the gateway is closed.
func (g *Gateway) going(f func()) {
	g.mu.Lock()
	if !g.closed {
		g.work.Go(f)
		g.mu.Unlock()
		return
	}
	g.mu.Unlock()
	f()
}

// Close ends all exchanges. Without Options.End the processes live on, and another gateway takes them over.
func (g *Gateway) Close() {
	g.stop()
	g.mu.Lock()
	g.closed = true
	hosts := make([]*host, 0, len(g.hosts)+len(g.sessions))
	for _, h := range g.hosts {
		hosts = append(hosts, h)
	}
	for _, t := range g.sessions {
		hosts = append(hosts, t.host)
	}
	g.mu.Unlock()
	for _, h := range hosts {
		h.end(!g.opt.End)
	}
	g.work.Wait()
}

// refuse answers a request that is not handled.
func refuse(w http.ResponseWriter, status int, id json.RawMessage, e rpcError) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(errorResponse(id, e).encode()) // fails only if the client is gone
}

// ServeHTTP serves the server that the path names.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := mcp.SameOrigin(r); err != nil {
		refuse(w, http.StatusForbidden, nil, rpcError{codeFailed, err.Error(), nil})
		return
	}
	who, err := g.opt.Caller(r)
	if err != nil {
		refuse(w, http.StatusForbidden, nil, rpcError{codeFailed, err.Error(), nil})
		return
	}
	s := g.servers[strings.Trim(r.URL.Path, "/")]
	if s == nil || !s.isFor(who.Tenant) {
		refuse(w, http.StatusNotFound, nil, rpcError{codeFailed, fmt.Sprintf("there is no server %.100q: %s", strings.Trim(r.URL.Path, "/"), g.namesFor(who.Tenant)), nil})
		return
	}
	// Close ends what is in progress, before it lets go of the processes.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	r = r.WithContext(ctx)
	switch r.Method {
	case http.MethodPost:
		g.post(w, r, s, who)
	case http.MethodGet, http.MethodDelete:
		t := g.useSession(ctx, s, who, r.Header.Get("Mcp-Session-Id"))
		if t == nil && s.Mode != ModeRequest {
			refuseSession(w, nil)
			return
		}
		if t == nil {
			w.Header().Set("Allow", "POST")
			refuse(w, http.StatusMethodNotAllowed, nil, rpcError{codeFailed, "this server has no sessions: it answers POST", nil})
			return
		}
		if r.Method == http.MethodDelete {
			g.doneSession(t)
			g.endSession(t)
			w.WriteHeader(http.StatusNoContent)
			return
		}
		q, stop := t.listen()
		g.doneSession(t) // an open stream is no use
		defer stop()
		out := newStream(w, r)
		out.open()
		out.copy(ctx, q)
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		refuse(w, http.StatusMethodNotAllowed, nil, rpcError{codeFailed, "must be GET, POST or DELETE", nil})
	}
}

// namesFor says which servers a tenant may use.
func (g *Gateway) namesFor(tenant string) string {
	var names []string
	for name, s := range g.servers {
		if s.isFor(tenant) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return fmt.Sprintf("mcp_servers of the daemon's configuration has none for the tenant %q", tenant)
	}
	slices.Sort(names)
	return "mcp_servers of the daemon's configuration has " + strings.Join(names, ", ")
}

func refuseSession(w http.ResponseWriter, id json.RawMessage) {
	refuse(w, http.StatusNotFound, id, rpcError{codeSession, "session not found: initialize a new one", nil})
}

// post handles one message of a client.
func (g *Gateway) post(w http.ResponseWriter, r *http.Request, s *Server, who Caller) {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(kind), "application/json") {
		refuse(w, http.StatusUnsupportedMediaType, nil, rpcError{codeInvalidRequest, "Content-Type must be application/json", nil})
		return
	}
	size := r.ContentLength
	if size < 0 || size > smallBody {
		if size < 0 || size > maxMessage { // unknown, or refused when it has come
			size = maxMessage
		}
		waiting, cancel := context.WithTimeout(r.Context(), bodyTimeout)
		ok, _ := g.bodies.Take(waiting, who.Tenant, size)
		cancel()
		if !ok {
			refuse(w, http.StatusServiceUnavailable, nil, rpcError{codeFailed, "large messages in progress take all of the memory for them: retry", nil})
			return
		}
		defer func() { g.bodies.Give(who.Tenant, size) }()
	} else {
		size = 0
	}
	body, err := mcp.ReadBody(w, r, maxMessage, bodyTimeout)
	if err != nil {
		var large *http.MaxBytesError
		status, why := http.StatusBadRequest, "the body did not arrive: "+err.Error()
		switch {
		case errors.As(err, &large):
			status, why = http.StatusRequestEntityTooLarge, fmt.Sprintf("a message must have at most %d bytes", maxMessage)
		case errors.Is(err, os.ErrDeadlineExceeded):
			status, why = http.StatusRequestTimeout, fmt.Sprintf("the body did not arrive within %s", bodyTimeout)
		}
		refuse(w, status, nil, rpcError{codeInvalidRequest, why, nil})
		return
	}
	if rest := size - int64(len(body)); rest > 0 {
		g.bodies.Give(who.Tenant, rest)
		size -= rest
	}
	m, err := parse(body)
	if err != nil {
		refuse(w, http.StatusBadRequest, nil, rpcError{rpcline.Code(err), err.Error(), nil})
		return
	}
	record := g.record(s, who, m)
	defer func() { g.writeRecord(record) }()
	if record != nil {
		if err := g.opt.Recordable(); err != nil {
			record.ended(outcome{CallRefused, "calls could not be recorded"})
			refuse(w, http.StatusServiceUnavailable, m.id, rpcError{codeFailed, "calls of tools cannot be recorded, so they are refused: " + err.Error(), nil})
			return
		}
	}
	if version := r.Header.Get("Mcp-Protocol-Version"); version >= statelessSince || m.method == "server/discover" {
		g.stateless(w, r, s, who, m, version, record)
		return
	}
	var t *session
	switch id := r.Header.Get("Mcp-Session-Id"); {
	case s.Mode == ModeRequest:
	case m.method == "initialize" && m.id != nil: // also with the ID of an older session: the client begins anew
		if t = g.newSession(s, who, newID()); !g.keepSession(t) {
			refuse(w, http.StatusTooManyRequests, m.id, rpcError{codeFailed, fmt.Sprintf("%d sessions of the protocol have a request in progress: wait for some", s.MaxSessions), nil})
			return
		}
	case id == "":
		refuse(w, http.StatusBadRequest, m.id, rpcError{codeInvalidRequest, "the header Mcp-Session-Id is missing: initialize a session", nil})
		return
	default:
		if t = g.useSession(r.Context(), s, who, id); t == nil {
			refuseSession(w, m.id)
			return
		}
	}
	if t != nil {
		defer g.doneSession(t)
		record.at(t.host.at.box, "")
	}
	if m.id == nil || m.method == "" {
		g.oneWay(r.Context(), t, who, m)
		w.WriteHeader(http.StatusAccepted)
		return
	}
	out := newStream(w, r)
	out.id = m.id
	if m.method == "initialize" && t != nil {
		if !g.initialize(r.Context(), out, t, who, m) {
			g.endSession(t)
		}
		return
	}
	g.answer(r.Context(), out, s, t, who, m, record, nil)
}

// oneWay handles a notification, or a response to a request of the server.
func (g *Gateway) oneWay(ctx context.Context, t *session, who Caller, m *message) {
	if t == nil { // its process is gone
		return
	}
	p, err := t.host.use(ctx, who, true)
	defer t.host.release()
	switch {
	case err != nil: // there is no process that it could be for
	case m.method == "":
		p.reply(m)
	case m.method == "notifications/cancelled":
		p.cancelled(t, m)
	case p.single && notifies(m):
		_ = p.send(m) // a server that reads nothing is told by the next request
	}
	// A server that clients share knows the gateway as its client, which has told it what it needs.
}

// initialize begins a session. It reports whether that has succeeded.
func (g *Gateway) initialize(ctx context.Context, out *stream, t *session, who Caller, m *message) bool {
	p, err := t.host.use(ctx, who, false)
	defer t.host.release()
	if err != nil {
		out.fail(err)
		return false
	}
	out.w.Header().Set("Mcp-Session-Id", t.id)
	if !p.single {
		out.send(response(m.id, p.hello).encode(), true)
		return out.err == nil
	}
	waiting, cancelTimeout := context.WithTimeoutCause(ctx, t.s.StartTimeout, fmt.Errorf("it did not answer initialize within %s", t.s.StartTimeout))
	defer cancelTimeout()
	result, err := p.doMessage(waiting, m)
	if err != nil {
		out.fail(p.greeted(ctx, p.inPhase(PhaseHandshake, err)))
		return false
	}
	p.greeted(ctx, nil)
	result.members["id"] = m.id
	out.send(result.encode(), true)
	return result.members["result"] != nil && out.err == nil
}

// answer sends the server's answer to a request. It notes the outcome in record, unless that is nil. finish changes the
// answer; nil leaves it as it is.
func (g *Gateway) answer(ctx context.Context, out *stream, s *Server, t *session, who Caller, m *message, record *ToolCall, finish func(*message) *message) {
	err := g.with(ctx, s, t, who, func(p *process) error {
		record.at(p.session, p.id)
		x, cancel, err := g.begin(ctx, p, t, m, out.plain, finish)
		if err != nil {
			return err
		}
		done := out.copy(ctx, x.out)
		cancel()
		if done {
			record.ended(x.outcome)
		} else {
			record.ended(endedEarly)
		}
		switch {
		case done || out.err != nil:
			return nil
		case g.ctx.Err() != nil:
			return s.failed(PhaseLost, errStopping)
		default: // the caller's credentials have ended; a client that is gone does not read this
			return s.failed(PhaseLost, context.Cause(ctx))
		}
	})
	if err != nil {
		record.ended(failedCall(ctx, err))
		if errors.Is(err, errNoProcess) {
			refuseSession(out.w, m.id)
			return
		}
		out.fail(err)
	}
}

// begin begins an exchange with the server, or without it if the gateway has the answer. The caller reads
// x.out, and calls cancel if it stops before the response. plain: see exchange.
func (g *Gateway) begin(ctx context.Context, p *process, t *session, m *message, plain bool, finish func(*message) *message) (x *exchange, cancel func(), err error) {
	if p.s.Tools.Pin != "" && strings.HasPrefix(m.method, "tools/") {
		if err := p.checkTools(ctx, g.opt.Logger); err != nil {
			return nil, nil, err
		}
	}
	var own *message
	var ambiguous error
	if m.method == "tools/call" {
		ambiguous = rpcline.CheckMembers(m.members["params"], false, "name", "arguments", "_meta")
	}
	switch name := text(object(m.members["params"])["name"]); {
	case ambiguous != nil:
		own = errorResponse(m.id, rpcError{codeInvalidParams, "params: " + ambiguous.Error(), nil})
	case m.method == "tools/call" && !p.s.allows(name):
		own = errorResponse(m.id, rpcError{codeInvalidParams, fmt.Sprintf("tool %.100q is not allowed: tools.allow of the server names those that are", name), nil})
	case m.method == "initialize" && p.hello != nil: // of a client without a session
		own = response(m.id, p.hello)
	case m.method == "resources/unsubscribe" && !p.single: // others may still want to hear of it
		own = response(m.id, struct{}{})
	}
	x = &exchange{owner: t, plain: plain, finish: func(answer *message) *message {
		if m.method == "tools/list" {
			answer = p.filterTools(answer)
		}
		if finish != nil {
			answer = finish(answer)
		}
		return answer
	}}
	if own != nil {
		x.outcome = outcome{CallRefused, "tools.allow does not have it, or its parameters are ambiguous"}
		x.out = newQueue(p.account)
		x.out.end(x.finish(own).encode())
		return x, func() {}, nil
	}
	cancel, err = p.ask(m, x)
	return x, cancel, err
}

// with calls use with the process of a request. t is nil for requests without a session of the protocol. If the process of t has
// ended, it ends t and returns errNoProcess.
func (g *Gateway) with(ctx context.Context, s *Server, t *session, who Caller, use func(*process) error) error {
	if s.Mode == ModeRequest {
		return g.once(ctx, s, who, use)
	}
	h := g.sharedHost(s, who.Tenant)
	if t != nil {
		h = t.host
	}
	p, err := h.use(ctx, who, s.Mode == ModeSession)
	defer h.release()
	if errors.Is(err, errNoProcess) {
		g.endSession(t)
	}
	if err != nil {
		return err
	}
	return use(p)
}
