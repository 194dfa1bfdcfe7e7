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

// RequestHeader carries the ID of a request, in both directions.
const RequestHeader = "X-Request-ID"

// ServeHTTP answers one request. Every error is answered with a problem, and writes at most
// one line to the log. Callers on Unix sockets can be identified only on connections of
// [Server.Serve].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{s: s, r: r, id: requestID(r.Header.Get(RequestHeader))}
	c.w = &response{ResponseWriter: w, call: c}
	c.w.extend() // replaces the deadline of the connection's last request
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
	if err := s.forPreviews(r); err != nil {
		c.fail(err)
		return
	}
	if setPort(r) {
		c.route = portRoute
		if err := c.serve(); err != nil {
			c.fail(err)
		}
		return
	}
	if err := checkURL(r.URL); err != nil {
		c.fail(err)
		return
	}
	if o := s.other(r.URL.Path); o != nil {
		c.refuse = o.Refuse
		if err := c.serveOther(o); err != nil {
			c.fail(err)
		}
		return
	}
	s.mux.ServeHTTP(c.w, r) // ends in call.serve or call.noRoute
}

// newMux returns a multiplexer for the table of routes.
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

// serve answers a request to a route, if the caller may use it.
func (c *call) serve() error {
	if !c.route.open {
		if err := c.admit(); err != nil {
			return err
		}
		share := c.s.requestShare
		if c.route.status == http.StatusSwitchingProtocols || c.route.anything && c.r.Header.Get("Upgrade") != "" {
			share = c.s.relayShare // its connection leaves the listener
		}
		if !share.takePlace(c.who.Tenant) {
			return refuse(apitypes.CodeTooManyConnections, "", "%d requests of this tenant are under way: wait for some, or close some", share.most)
		}
		defer share.freePlace(c.who.Tenant)
	}
	if c.route.anything {
		return c.route.handler(c)
	}
	if err := c.checkQuery(); err != nil {
		return err
	}
	// net/http does not notice a disconnected client while it waits for a body.
	if c.r.ContentLength != 0 && c.route.body == nil && c.route.rawBody == "" {
		return refuse(apitypes.CodeBodyTooLarge, "", "the request must have no body")
	}
	// In HTTP/1.0 the end of the connection is the end of the answer, so a truncated answer
	// would look complete.
	if (c.route.replyType == octets || c.route.replyType == tarball) && !c.r.ProtoAtLeast(1, 1) {
		return refuse(apitypes.CodeHTTPVersion, "", "%s: content is sent with HTTP/1.1 only", spec.Quote(c.r.Proto))
	}
	return c.route.handler(c)
}

// admit authenticates the caller and checks that its role may use the route.
func (c *call) admit() (err error) {
	if c.who, err = c.identify(); errors.As(err, new(*refusal)) {
		return err
	} else if err != nil {
		code := apitypes.CodeUnauthenticated
		if errors.Is(err, errStranger) || errors.Is(err, errBrowser) || errors.Is(err, errOtherPage) {
			code = apitypes.CodeForbidden
		}
		return &refusal{code: code, detail: err.Error(), err: err}
	}
	if c.tenant, err = chooseTenant(c.who, c.r.Header.Get(TenantHeader)); err != nil {
		return err
	}
	if info, _ := c.r.Context().Value(connKey{}).(*connInfo); info == nil || info.inside == nil {
		if err := c.s.opt.Sessions.AdmitRequest(c.listTenant(), c.who.Limits); err != nil {
			return err
		}
	}
	if c.route == nil {
		return nil
	}
	if c.who.Role < c.route.role {
		return refuse(apitypes.CodeForbidden, "", "role %s may not do this: %s may", c.who.Role, c.route.role)
	}
	if c.route.everyTenant && !c.who.all() {
		return refuse(apitypes.CodeForbidden, "", "this is about all tenants: only administrators and the tenant %q may see it", AllTenants)
	}
	return nil
}

// noRoute says that the path does not exist, to callers who may know that.
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
		return refuse(apitypes.CodeNoRoute, "", "no such path: /v1/openapi.json describes all that exist")
	}
	c.w.Header().Set("Allow", strings.Join(allowed, ", "))
	return refuse(apitypes.CodeMethod, "", "method %s: must be one of %s", spec.Quote(c.r.Method), strings.Join(allowed, ", "))
}

// checkURL refuses paths that a multiplexer would redirect, such as those with "..",
// because the client would end up somewhere it did not name.
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
			return refuse(apitypes.CodeUnknownField, name, "unknown query parameter %s", spec.Quote(name))
		}
	}
	c.values = values
	return nil
}

// failures are the codes of the daemon's own errors, which are logged. Other codes of 500
// and above are about a box or a request, or repeat an error that is logged where it
// happened: a caller that keeps asking must not fill the log.
var failures = []string{apitypes.CodeInternal, apitypes.CodeStorage, apitypes.CodeEngineUnavailable, apitypes.CodeTimeout}

// problem returns err in the form of RFC 9457 for this call. It counts refusals, and logs failures of the daemon.
func (c *call) problem(err error) apitypes.Problem {
	p := problemOf(err, c.id)
	if p.Code == apitypes.CodeInternal && c.who.Role == Admin {
		p.Detail = oneline.Error(err) // an administrator may read the log as well
	}
	if slices.Contains(failures, p.Code) {
		c.log(slog.LevelWarn, "request failed", slog.Int("status", p.Status), slog.Any("error", err))
	}
	switch p.Code {
	case apitypes.CodeQuota:
		c.s.metrics.quotaRefusals.WithLabelValues(p.Limit, p.Scope).Inc()
	case apitypes.CodeRate:
		c.s.metrics.rateRefusals.WithLabelValues(p.Limit, p.Scope).Inc()
	}
	return p
}

// fail answers with err. If an answer was begun, it closes the connection instead, so that
// the client does not mistake a part of the answer for all of it.
func (c *call) fail(err error) {
	if c.r.Context().Err() != nil && errors.Is(err, context.Canceled) && c.s.base.Err() == nil {
		c.vanished = true // the client has gone
	}
	p := c.problem(err)
	if c.w.started() {
		panic(http.ErrAbortHandler)
	}
	if c.bodyLeft() {
		c.w.Header().Set("Connection", "close") // otherwise net/http reads the rest before it answers
	}
	if c.refuse != nil {
		problemHeader(c.w.Header(), p)
		c.refuse(c.w, p)
		return
	}
	writeProblem(c.w, p)
}

// bodyLeft reports whether a part of the body was not read.
func (c *call) bodyLeft() bool { return c.r.ContentLength != 0 && !c.bodyRead && !c.w.hijacked }

// leaveBody bounds how long net/http waits for the rest of an unread body. Otherwise the
// senders of refused requests could hold connections as long as they like.
func (c *call) leaveBody() {
	if c.bodyLeft() {
		http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(time.Second))
	}
}

// panicked answers after a panic of a handler. http.ErrAbortHandler is not a fault.
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
	c.s.metrics.requests.WithLabelValues(name, strconv.Itoa(status)).Inc()
	c.log(slog.LevelDebug, "request", slog.Int("status", status), slog.Duration("took", took))
}

// log writes a line that identifies the request.
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

// maxRequestID bounds the length of a client's request ID.
const maxRequestID = 64

// requestID returns the client's ID of the request if it is harmless in a log, and
// otherwise a new one. The ID identifies a request; it protects nothing.
func requestID(given string) string {
	harmless := func(r rune) bool {
		return r == '-' || r == '_' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if given != "" && len(given) <= maxRequestID && strings.IndexFunc(given, func(r rune) bool { return !harmless(r) }) < 0 {
		return given
	}
	return strconv.FormatUint(rand.Uint64(), 36)
}
