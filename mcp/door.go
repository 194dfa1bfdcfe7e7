package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/budget"
	"github.com/boxd/boxd/internal/rpcline"
	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of the door.
const (
	// maxBody bounds a request in bytes. The content of a file is a part of one.
	maxBody = 4 << 20
	// defaultBodyTimeout is how long a request may take to arrive.
	defaultBodyTimeout = 30 * time.Second
	// statelessSince is the first revision without sessions of the protocol.
	statelessSince = "2026-07-28"
	// maxServers bounds the servers, one of a tenant, that are kept.
	maxServers = 256
)

// Caller is who has sent a request.
type Caller struct {
	// Tenant is the one that the caller acts on.
	Tenant string
	// Actor names the caller in logs.
	Actor string
	// Key identifies the caller; no other caller has it.
	Key string
	// Dial connects to the API with the caller's rights.
	Dial func(ctx context.Context) (net.Conn, error)
}

// DoorOptions of a [Door]. Caller is required.
type DoorOptions struct {
	Options
	// Caller returns the sender of a request, which was authenticated before.
	Caller func(*http.Request) (Caller, error)
	// Logger; nil is slog.Default.
	Logger *slog.Logger
}

// Door serves the protocol as streamable HTTP. It is safe for concurrent use.
type Door struct {
	opt       DoorOptions
	stateful  http.Handler // revisions with sessions
	stateless http.Handler // the later ones
	legacy    *legacySessions

	bodyTimeout time.Duration
	resources   *budget.Budget // of the content of resources

	mu      sync.Mutex
	servers map[string]*sdk.Server // by tenant
}

// NewDoor returns a door. The caller closes it.
func NewDoor(o DoorOptions) *Door {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	d := &Door{opt: o, servers: map[string]*sdk.Server{}, legacy: newLegacySessions(), bodyTimeout: defaultBodyTimeout, resources: budget.New(heldResources, tenantResources)}
	server := func(r *http.Request) *sdk.Server { return requestOf(r.Context()).server }
	common := sdk.StreamableHTTPOptions{
		MaxRequestBodyBytes: maxBody, SessionTimeout: legacyTimeout,
		// Whoever has no credentials is admitted by the name of a host on loopback only (package api),
		// and a page of another site has no token. Behind a proxy the name is another one.
		DisableLocalhostProtection: true,
		// The response is the only place for the result, so without it the command ends.
		PropagateRequestCancellation: true,
	}
	without := common
	without.Stateless = true
	identify := auth.RequireBearerToken(func(_ context.Context, _ string, r *http.Request) (*auth.TokenInfo, error) {
		q := requestOf(r.Context())
		return &auth.TokenInfo{UserID: q.owner(), Extra: map[string]any{requestExtra: q}}, nil
	}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})
	d.stateful = identify(sdk.NewStreamableHTTPHandler(server, &common))
	d.stateless = identify(sdk.NewStreamableHTTPHandler(server, &without))
	return d
}

// Close ends the sessions of the protocol. Boxes stay.
func (d *Door) Close() { d.legacy.closeAll() }

// request is one HTTP request.
type request struct {
	caller Caller
	server *sdk.Server
	gone   <-chan struct{} // closed when the response cannot be sent any more

	resources *budget.Budget

	mu    sync.Mutex
	held  int64 // bytes of resources
	ended bool  // the response was sent, or cannot be
}

// hold counts n bytes of the response for the caller's tenant until it was sent.
func (q *request) hold(ctx context.Context, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, resourcePatience)
	defer cancel()
	if ok, own := q.resources.Take(ctx, q.caller.Tenant, n); !ok {
		whose, limit := "other requests", heldResources
		if own {
			whose, limit = "the tenant's other requests", tenantResources
		}
		return fmt.Errorf("resources that %s read take all of the %d bytes that may be held at once: retry, or use read_file", whose, limit)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		q.resources.Give(q.caller.Tenant, n)
		return context.Canceled
	}
	q.held += n
	return nil
}

// end is called when the response was sent, or cannot be.
func (q *request) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended = true; q.held > 0 {
		q.resources.Give(q.caller.Tenant, q.held)
	}
}

// owner identifies the caller.
func (q *request) owner() string { return q.caller.Tenant + "\x00" + q.caller.Key }

// requestExtra is the key of a *request in auth.TokenInfo.Extra, by which the SDK hands it to tools.
const requestExtra = "boxd.request"

// requestKey is the key of a *request in the context of an HTTP request.
type requestKey struct{}

func requestOf(ctx context.Context) *request { return ctx.Value(requestKey{}).(*request) }

// callerOf returns the caller of a tool.
func callerOf(extra *sdk.RequestExtra) (caller, error) {
	if extra == nil || extra.TokenInfo == nil {
		return caller{}, errors.New("the request has no caller")
	}
	q, ok := extra.TokenInfo.Extra[requestExtra].(*request)
	if !ok {
		return caller{}, errors.New("the request has no caller")
	}
	c, err := client.New(client.Options{Dial: q.caller.Dial, Tenant: q.caller.Tenant})
	if err != nil {
		return caller{}, err
	}
	return caller{client: c, actor: q.caller.Actor, key: q.caller.Key, hold: q.hold, done: q.gone, close: c.Close}, nil
}

// ServeHTTP answers one request of the protocol.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := SameOrigin(r); err != nil {
		refuse(w, http.StatusForbidden, err.Error(), nil)
		return
	}
	who, err := d.opt.Caller(r)
	if err != nil {
		refuse(w, http.StatusForbidden, err.Error(), nil)
		return
	}
	body, err := ReadBody(w, r, maxBody, d.bodyTimeout)
	if err != nil {
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body must have at most %d bytes", maxBody), nil)
		case errors.Is(err, os.ErrDeadlineExceeded):
			refuse(w, http.StatusRequestTimeout, fmt.Sprintf("the body did not arrive within %s", d.bodyTimeout), nil)
		default:
			refuse(w, http.StatusBadRequest, "the body did not arrive: "+err.Error(), nil)
		}
		return
	}
	if b := bytes.TrimLeft(body, " \t\r\n"); len(b) > 0 && b[0] == '[' { // the SDK would run all of them at once
		refuse(w, http.StatusBadRequest, "batches are not accepted: send one message", nil)
		return
	}
	server, err := d.server(r.Context(), who)
	if err != nil {
		d.opt.Logger.Warn("mcp: preparing the tools", "tenant", who.Tenant, "error", err)
		refuse(w, http.StatusServiceUnavailable, "the tools cannot be prepared: "+toolError(err).Error(), nil)
		return
	}
	q := &request{caller: who, server: server, gone: r.Context().Done(), resources: d.resources}
	defer q.end()
	r = r.Clone(context.WithValue(r.Context(), requestKey{}, q))
	r.Header.Set("Authorization", "Bearer checked") // the SDK wants one, and need not have ours
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	a := &answer{ResponseWriter: w}
	defer a.end()
	if r.Header.Get("Mcp-Protocol-Version") >= statelessSince {
		d.stateless.ServeHTTP(a, r)
		return
	}
	if m, err := rpcline.Parse(body); err == nil && m.Method == "initialize" {
		r.Header.Del("Mcp-Session-Id") // of a session that is gone: a client that begins anew wants another one
	}
	id := r.Header.Get("Mcp-Session-Id")
	if id == "" {
		a.begin = func(h http.Header) bool { return d.legacy.add(h.Get("Mcp-Session-Id"), q) }
	} else if !d.legacy.use(id, q) {
		refuse(a, http.StatusNotFound, "session not found: initialize a new one", nil)
		return
	}
	defer func() {
		if id == "" {
			id = a.Header().Get("Mcp-Session-Id")
		}
		d.legacy.release(id, a.status == http.StatusNotFound || r.Method == http.MethodDelete)
	}()
	d.stateful.ServeHTTP(a, r)
}

// server returns the server for a caller. Its texts depend on the profile of the tenant's sessions,
// which does not change while the daemon runs.
func (d *Door) server(ctx context.Context, who Caller) (*sdk.Server, error) {
	d.mu.Lock()
	have := d.servers[who.Tenant]
	d.mu.Unlock()
	if have != nil {
		return have, nil
	}
	c, err := client.New(client.Options{Dial: who.Dial, Tenant: who.Tenant})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	profile, err := profileOf(ctx, c, d.opt.Profile)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if have := d.servers[who.Tenant]; have != nil { // two servers would split the sessions
		return have, nil
	}
	if len(d.servers) >= maxServers { // sessions keep the server that they have
		clear(d.servers)
	}
	made := newServer(d.opt.Options, profile, callerOf)
	d.servers[who.Tenant] = made
	return made, nil
}

// profileOf returns the profile of new sessions; name may be empty.
func profileOf(ctx context.Context, c *client.Client, name string) (apitypes.Profile, error) {
	if name == "" {
		return c.DefaultProfile(ctx)
	}
	all, err := c.Profiles(ctx)
	if err != nil {
		return apitypes.Profile{}, err
	}
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
	}
	return apitypes.Profile{}, fmt.Errorf("there is no profile %q", name)
}

// SameOrigin refuses requests that a page of another site makes a browser send.
func SameOrigin(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Errorf("origin %q: a page of another site may not use this server", origin)
		}
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "none", "same-origin":
		return nil
	default:
		return fmt.Errorf("sec-fetch-site %q: a page of another site may not use this server", site)
	}
}

// ReadBody reads the whole body, of at most limit bytes, so that a slow client does not hold more than its
// connection.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64, timeout time.Duration) ([]byte, error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(timeout)) // a recorder of a test has no connection
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }()
	return io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
}

// answer is a response. Errors of the SDK before a message was read are plain text; they become
// errors of JSON-RPC, as all others.
type answer struct {
	http.ResponseWriter
	status int // 0 before the header
	// begin is called before the header of a success is written; false: the answer is a refusal. nil: it
	// is not called.
	begin func(http.Header) bool
	plain bool         // the body is collected in text
	text  bytes.Buffer // an error of the SDK
}

func (a *answer) WriteHeader(status int) {
	if a.status != 0 {
		return
	}
	a.status = status
	switch {
	case status >= 400 && !strings.HasPrefix(a.Header().Get("Content-Type"), "application/json"):
		a.plain = true
		return
	case status < 300 && a.begin != nil && a.Header().Get("Mcp-Session-Id") != "" && !a.begin(a.Header()):
		a.status, a.plain = http.StatusTooManyRequests, true
		a.Header().Del("Mcp-Session-Id")
		a.text.WriteString("too many sessions of the protocol have a request in progress: wait for some")
		return
	}
	a.ResponseWriter.WriteHeader(status)
}

// maxErrorText bounds an error of the SDK.
const maxErrorText = 4 << 10

func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if !a.plain {
		return a.ResponseWriter.Write(p)
	}
	if a.status != http.StatusTooManyRequests && a.text.Len() < maxErrorText {
		a.text.Write(p[:min(len(p), maxErrorText)])
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (a *answer) Flush() {
	if !a.plain {
		_ = http.NewResponseController(a.ResponseWriter).Flush() // a failure shows at the next write
	}
}

// Unwrap is called by http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) end() {
	if a.plain {
		refuse(a.ResponseWriter, a.status, strings.TrimSpace(a.text.String()), nil)
	}
}

// Codes of JSON-RPC errors.
const (
	codeInvalid  = -32600
	codeInternal = -32603
	codeRefused  = -32000
	codeSession  = -32001 // as other servers answer for an unknown session
)

// refuse answers with an error of JSON-RPC without an ID. data may be nil.
func refuse(w http.ResponseWriter, status int, text string, data any) {
	code := codeRefused
	switch {
	case status == http.StatusNotFound:
		code = codeSession
	case status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge || status == http.StatusUnsupportedMediaType:
		code = codeInvalid
	case status >= 500:
		code = codeInternal
	}
	type failure struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    any    `json:"data,omitempty"`
	}
	body, err := json.Marshal(struct {
		JSONRPC string  `json:"jsonrpc"`
		ID      any     `json:"id"`
		Error   failure `json:"error"`
	}{"2.0", nil, failure{code, text, data}})
	if err != nil {
		panic(err) // strings, and the problem of package api
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Del("Content-Length")
	w.WriteHeader(status)
	w.Write(body) // fails only if the client has gone
}

// Refuse answers with a problem of the API, which has refused the request, in the form of the
// protocol: an error whose data is the problem.
func Refuse(w http.ResponseWriter, p apitypes.Problem) { refuse(w, p.Status, p.Detail, p) }
