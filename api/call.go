package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// TenantHeader names the tenant to act on, for callers who may choose it.
const TenantHeader = "X-Boxd-Tenant"

// call is one request that is being served.
type call struct {
	s      *Server
	w      *response
	r      *http.Request
	id     string // of the request
	who    Identity
	mine   *pageLogin // the login of a page that the request comes from; nil: it has other credentials
	tenant string     // to act on; AllTenants for all
	route  *route
	values url.Values // of the query
	// bodyRead: the body was read to its end.
	bodyRead bool
	// vanished: the client did not wait for the answer.
	vanished bool
	// refuse answers with a problem in the form of another protocol; nil: of the API.
	refuse func(w http.ResponseWriter, p apitypes.Problem)
}

// caller returns the caller in the form of package session.
func (c *call) caller() session.Caller {
	return session.Caller{Tenant: c.who.Tenant, Actor: c.who.Actor, Request: c.id, Limits: c.who.Limits}
}

// chooseTenant returns the tenant on which the request acts.
func chooseTenant(who Identity, header string) (string, error) {
	switch {
	case header == "" && who.Tenant == AllTenants && who.Role == Admin:
		return DefaultTenant, nil
	case header == "" || header == who.Tenant:
		return who.Tenant, nil
	case !who.all():
		return "", refuse(apitypes.CodeForbidden, TenantHeader, "%s: only administrators choose a tenant", TenantHeader)
	case header == AllTenants:
		return AllTenants, nil
	}
	if err := policy.ValidateTenant(header); err != nil {
		return "", &refusal{code: apitypes.CodeInvalid, field: TenantHeader, detail: TenantHeader + ": " + err.Error(), err: err}
	}
	return header, nil
}

// oneTenant returns the tenant, or an error if the request names all tenants.
func (c *call) oneTenant() (string, error) {
	if c.tenant == AllTenants {
		return "", refuse(apitypes.CodeInvalid, TenantHeader, "%s: must name one tenant for this", TenantHeader)
	}
	return c.tenant, nil
}

// listTenant returns the tenant in the form of package session's lists, where "" means all.
func (c *call) listTenant() string {
	if c.tenant == AllTenants {
		return ""
	}
	return c.tenant
}

// key returns the session that the path names.
func (c *call) key() (session.Key, error) {
	tenant, err := c.oneTenant()
	if err != nil {
		return session.Key{}, err
	}
	id := c.r.PathValue("id")
	if err := policy.ValidateSessionID(id); err != nil {
		return session.Key{}, err
	}
	return session.Key{Tenant: tenant, ID: id}, nil
}

// process returns the managed process that the path names.
func (c *call) process() (*session.Process, error) {
	key, err := c.key()
	if err != nil {
		return nil, err
	}
	pid := c.r.PathValue("pid")
	if err := policy.ValidateProcessID(pid); err != nil {
		return nil, err
	}
	p, err := c.s.opt.Sessions.Process(key, pid)
	if errors.Is(err, session.ErrNotFound) {
		if _, err := c.s.opt.Sessions.Get(key); err != nil {
			return nil, noSession(err)
		}
		return nil, &refusal{code: apitypes.CodeProcessNotFound, detail: err.Error(), err: err}
	}
	return p, err
}

// onSession is the handler of a route whose path names a session.
func onSession(handle func(*call, session.Key) error) func(*call) error {
	return func(c *call) error {
		key, err := c.key()
		if err != nil {
			return err
		}
		return noSession(handle(c, key))
	}
}

// onProcess is the handler of a route whose path names a managed process.
func onProcess(handle func(*call, *session.Process) error) func(*call) error {
	return func(c *call) error {
		p, err := c.process()
		if err != nil {
			return err
		}
		return handle(c, p)
	}
}

// noSession returns err; if it is "not found", it says that the session was not found.
func noSession(err error) error {
	if errors.Is(err, session.ErrNotFound) {
		return &refusal{code: apitypes.CodeSessionNotFound, detail: err.Error(), err: err}
	}
	return err
}

// reply answers with v as JSON.
func (c *call) reply(status int, v any) error {
	if c.r.Context().Err() != nil && c.s.base.Err() == nil {
		return context.Canceled // the client has gone
	}
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	c.w.Write(body) // fails only if the client has gone
	return nil
}

// empty answers with success and no content.
func (c *call) empty() error {
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// queryInt returns a query parameter that is a number of at least lowest; 0 if it is
// absent.
func (c *call) queryInt(name string, lowest int64) (int64, error) {
	text := c.query(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < lowest {
		return 0, &engine.FieldError{Field: name, Value: spec.Quote(text), Rule: "must be a whole number, at least " + strconv.FormatInt(lowest, 10)}
	}
	return n, nil
}

// queryBool returns a query parameter that is a switch.
func (c *call) queryBool(name string) (bool, error) {
	switch text := c.query(name); text {
	case "", "0", "false":
		return false, nil
	case "1", "true":
		return true, nil
	default:
		return false, &engine.FieldError{Field: name, Value: spec.Quote(text), Rule: "must be 1 or 0"}
	}
}

// query returns a query parameter.
func (c *call) query(name string) string { return c.values.Get(name) }
