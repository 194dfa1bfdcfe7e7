package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneline"
)

// RequestHeader carries the id of a request, both ways.
const RequestHeader = "X-Request-ID"

// ServeHTTP answers one request. Whatever goes wrong, the answer is a problem, and
// never more than one line in the log.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{s: s, r: r, id: requestID(r.Header.Get(RequestHeader))}
	c.w = &response{ResponseWriter: w, call: c}
	c.w.extend() // the deadline of an earlier request may be over
	start := time.Now()
	h := w.Header()
	h.Set(RequestHeader, c.id)
	h.Set("X-Content-Type-Options", "nosniff")
	defer func() {
		defer func() { c.leaveBody(); c.done(time.Since(start)) }()
		if p := recover(); p != nil {
			c.panicked(p)
		}
	}()
	if err := checkURL(r.URL); err != nil {
		c.fail(err)
		return
	}
	if o := s.other(r.URL.Path); o != nil {
		if err := c.serveOther(o); err != nil {
			c.fail(err)
		}
		return
	}
	s.mux.ServeHTTP(c.w, r) // ends in call.serve or Server.noRoute
}

// newMux makes a multiplexer of the table of routes.
func newMux() *http.ServeMux {
	mux := http.NewServeMux()
	for i := range routes {
		rt := &routes[i]
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) {
			c := w.(*response).call
			c.r, c.route = r, rt
			if err := c.serve(); err != nil {
				c.fail(err)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c := w.(*response).call
		c.fail(c.noRoute(mux))
	})
	return mux
}

// serve answers a request to a route, once it is known that the caller may ask.
func (c *call) serve() error {
	if !c.route.open {
		if err := c.admit(); err != nil {
			return err
		}
		share := c.s.requestShare
		if c.route.status == http.StatusSwitchingProtocols {
			share = c.s.relayShare // its connection is none of the listener's any more
		}
		if !share.take(c.who.Tenant) {
			return refuse(apitypes.CodeTooManyConnections, "", "%d requests of this tenant are under way: wait for some, or close some", share.most)
		}
		defer share.give(c.who.Tenant)
	}
	if err := c.checkQuery(); err != nil {
		return err
	}
	// While a body is awaited, net/http does not notice that the client is gone.
	if c.r.ContentLength != 0 && c.route.body == nil && c.route.rawBody == "" {
		return refuse(apitypes.CodeBodyTooLarge, "", "there must be no body: nothing is taken here")
	}
	// Where the end of the connection is the end of the answer, a part would look like
	// the whole.
	if c.route.replyType == octets && !c.r.ProtoAtLeast(1, 1) {
		return refuse(apitypes.CodeHTTPVersion, "", "%s: content is sent with HTTP/1.1 only", spec.Quote(c.r.Proto))
	}
	return c.route.handler(c)
}

// admit finds out who asks, and whether that role may.
func (c *call) admit() (err error) {
	if c.who, err = c.s.opt.Auth.identify(c.r); errors.As(err, new(*refusal)) {
		return err
	} else if err != nil {
		code := apitypes.CodeUnauthenticated
		if errors.Is(err, errStranger) || errors.Is(err, errBrowser) {
			code = apitypes.CodeForbidden
		}
		return &refusal{code: code, detail: err.Error(), err: err}
	}
	if c.tenant, err = chooseTenant(c.who, c.r.Header.Get(TenantHeader)); err != nil || c.route == nil {
		return err
	}
	if c.who.Role < c.route.role {
		return refuse(apitypes.CodeForbidden, "", "role %s may not do this: %s may", c.who.Role, c.route.role)
	}
	if c.route.everyTenant && !c.who.all() {
		return refuse(apitypes.CodeForbidden, "", "this is about all tenants: only administrators and the tenant %q may see it", AllTenants)
	}
	return nil
}

// noRoute says that nothing is there, to those who may know.
func (c *call) noRoute(mux *http.ServeMux) error {
	if err := c.admit(); err != nil {
		return err
	}
	var allowed []string
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		other := http.Request{Method: method, URL: c.r.URL, Host: c.r.Host}
		if _, pattern := mux.Handler(&other); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if allowed == nil {
		return refuse(apitypes.CodeNoRoute, "", "no such path: /v1/openapi.json describes those that there are")
	}
	c.w.Header().Set("Allow", strings.Join(allowed, ", "))
	return refuse(apitypes.CodeMethod, "", "method %s: must be one of %s", spec.Quote(c.r.Method), strings.Join(allowed, ", "))
}

// checkURL refuses paths that a multiplexer would send to another place, such as
// those with "..": the place was not what the client named.
func checkURL(u *url.URL) error {
	if u.Path != path.Clean(u.Path) || !strings.HasPrefix(u.Path, "/") {
		return refuse(apitypes.CodeBadPath, "", "the path must have no empty, \".\" or \"..\" part, and no slash at its end")
	}
	return nil
}

// checkQuery refuses parameters that the route does not have.
func (c *call) checkQuery() error {
	if c.r.URL.RawQuery == "" {
		return nil
	}
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return refuse(apitypes.CodeBadPath, "", "query: %s", err)
	}
	for name := range values {
		if !slices.ContainsFunc(c.route.query, func(p param) bool { return p.name == name }) {
			return refuse(apitypes.CodeUnknownField, name, "query parameter %s is not known here", spec.Quote(name))
		}
	}
	c.values = values
	return nil
}

// failures are the codes of errors that are the daemon's own. Others of 500 and above
// are about a box or a request, or say again what is logged where it happened: whoever
// asks again and again must not fill the log.
var failures = []string{apitypes.CodeInternal, apitypes.CodeStorage, apitypes.CodeEngineUnavailable, apitypes.CodeTimeout}

// fail answers with err, or cuts the connection if an answer is under way: a client
// must not take a part of it for the whole.
func (c *call) fail(err error) {
	if c.r.Context().Err() != nil && errors.Is(err, context.Canceled) && c.s.base.Err() == nil {
		c.vanished = true // nobody is there to answer
	}
	p := problemOf(err, c.id)
	if p.Code == apitypes.CodeInternal && c.who.Role == Admin {
		p.Detail = oneline.Error(err) // whoever may read the log may read this
	}
	if slices.Contains(failures, p.Code) {
		c.log(slog.LevelWarn, "request failed", slog.Int("status", p.Status), slog.Any("error", err))
	}
	if p.Code == apitypes.CodeQuota {
		c.s.metrics.quotaRefusals.WithLabelValues(p.Limit, p.Scope).Inc()
	}
	if c.w.started() {
		panic(http.ErrAbortHandler)
	}
	if c.bodyLeft() {
		c.w.Header().Set("Connection", "close") // else net/http reads the rest before it answers
	}
	writeProblem(c.w, p)
}

// bodyLeft says that the body of the request was not read to its end.
func (c *call) bodyLeft() bool { return c.r.ContentLength != 0 && !c.bodyRead && !c.w.hijacked }

// leaveBody bounds how long net/http waits for the rest of a body that nobody
// wants: without it, requests that are refused would hold connections for as long as
// their senders like.
func (c *call) leaveBody() {
	if c.bodyLeft() {
		http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(time.Second))
	}
}

// panicked answers for a handler that panicked. http.ErrAbortHandler is no fault.
func (c *call) panicked(p any) {
	if p == http.ErrAbortHandler {
		panic(p)
	}
	c.log(slog.LevelError, "request panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	if c.w.started() {
		panic(http.ErrAbortHandler)
	}
	writeProblem(c.w, problemOf(fmt.Errorf("panic: %v", p), c.id))
}

// done counts the request and logs it at level debug.
func (c *call) done(took time.Duration) {
	status, name := c.w.status, "none"
	if c.vanished {
		status = statusVanished
	}
	if c.route != nil {
		name = c.route.name
	}
	c.s.metrics.request(name, status)
	c.log(slog.LevelDebug, "request", slog.Int("status", status), slog.Duration("took", took))
}

// log writes a line with what identifies the request.
func (c *call) log(level slog.Level, text string, attrs ...slog.Attr) {
	ctx := c.r.Context()
	if !c.s.log.Enabled(ctx, level) {
		return
	}
	c.s.log.LogAttrs(ctx, level, text, append([]slog.Attr{
		slog.String("request", c.id), slog.String("tenant", c.tenant), slog.String("actor", c.who.Actor),
		slog.String("method", c.r.Method), slog.String("path", c.r.URL.Path),
		slog.String("session", c.r.PathValue("id")), slog.String("process", c.r.PathValue("pid")),
	}, attrs...)...)
}

// maxRequestID bounds the ids that clients give to requests.
const maxRequestID = 64

// requestID is the client's id of the request if that is harmless in a log, else
// one of our own. It identifies, it does not protect.
func requestID(given string) string {
	harmless := func(r rune) bool {
		return r == '-' || r == '_' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if given != "" && len(given) <= maxRequestID && strings.IndexFunc(given, func(r rune) bool { return !harmless(r) }) < 0 {
		return given
	}
	return strconv.FormatUint(rand.Uint64(), 36)
}
