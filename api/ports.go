package api

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/preview"
	"github.com/boxd/boxd/session"
)

// portRoute is the route of everything below a port.
var portRoute *route

func init() { // the table refers to the handler, which needs no table
	portRoute = &routes[slices.IndexFunc(routes, func(rt route) bool { return rt.path == portPath })]
}

// setPort reports whether the path of r names a port or lies below one, and sets its session and port.
// It does not use the multiplexer: below a port, paths need not be clean.
func setPort(r *http.Request) bool {
	id, port, _, ok := cutPort(r.URL)
	if ok {
		r.SetPathValue("id", id)
		r.SetPathValue("port", port)
	}
	return ok
}

// cutPort returns the session, the port and the part of the escaped path that names them.
func cutPort(u *url.URL) (id, port, prefix string, ok bool) {
	escaped := u.EscapedPath()
	rest, ok := strings.CutPrefix(escaped, sessionsPath+"/")
	if !ok {
		return "", "", "", false
	}
	id, rest, _ = strings.Cut(rest, "/")
	rest, ok = strings.CutPrefix(rest, "ports/")
	port, below, _ := strings.Cut(rest, "/")
	id, err := url.PathUnescape(id)
	if !ok || err != nil || policy.ValidateSessionID(id) != nil || !isPort(port) {
		return "", "", "", false // the multiplexer answers with the error
	}
	if len(rest) > len(port) {
		escaped = strings.TrimSuffix(escaped, "/"+below)
	}
	return id, port, escaped, true
}

// isPort reports whether text is 1 to 65535, as Go writes it: each port has one path.
func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0 && strconv.FormatUint(n, 10) == text
}

// visitPort admits the caller to the port that the path names. The caller serves the request that
// it returns, whose context ends when the caller may not have the port any more.
func (c *call) visitPort(key session.Key, action string) (r *http.Request, port int, release func(), err error) {
	text := c.r.PathValue("port")
	if !isPort(text) {
		return nil, 0, nil, &engine.FieldError{Field: "port", Value: spec.Quote(text), Rule: "must be 1 to 65535"}
	}
	port, _ = strconv.Atoi(text) // isPort has parsed it
	// Sensitive sessions have previews for administrators only.
	admitted, leave := c.whileAdmitted(c.r.Context())
	ctx, end, err := c.s.opt.Sessions.Visit(admitted, c.caller(), key, session.Visit{Action: action, Port: port, Trusted: c.who.Role == Admin})
	if err != nil {
		leave()
		c.s.metrics.preview.Refused.Add(1)
		return nil, 0, nil, err
	}
	return c.r.WithContext(ctx), port, func() { end(); leave() }, nil
}

// port passes a request on to a server in the box.
func (c *call) port(key session.Key) error {
	r, port, release, err := c.visitPort(key, "preview")
	if err != nil {
		return err
	}
	defer release()
	_, _, prefix, _ := cutPort(r.URL)
	c.bodyRead = true // the proxy bounds it
	v := preview.Visit{Target: preview.Target{Tenant: key.Tenant, Session: key.ID, Port: port}, Prefix: prefix}
	if c.who.Role == Admin {
		v.Apart = "a" // connections of other visitors end when the session becomes sensitive
	}
	c.s.ports.ServeHTTP(c.w, r, v)
	return nil
}

// tunnel connects a WebSocket to a port of the box.
func (c *call) tunnel(key session.Key) error {
	r, port, release, err := c.visitPort(key, "forward")
	if err != nil {
		return err
	}
	defer release()
	c.s.ports.ServeTunnel(c.w, r, preview.Target{Tenant: key.Tenant, Session: key.ID, Port: port})
	return nil
}

func (s *Server) dialPort(ctx context.Context, t preview.Target) (net.Conn, error) {
	return s.opt.Sessions.Dial(ctx, session.Key{Tenant: t.Tenant, ID: t.Session}, t.Port)
}

func (s *Server) portsChanged(t preview.Target) <-chan struct{} {
	return s.opt.Sessions.PortsChanged(session.Key{Tenant: t.Tenant, ID: t.Session})
}
