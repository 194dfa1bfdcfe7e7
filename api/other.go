package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
)

// Other serves another protocol on the listeners of the API, for operators and administrators.
type Other struct {
	// Prefix is a path, such as "/mcp". If it ends with "/", everything below is meant too, and
	// Handler sees the rest of the path.
	Prefix string
	// Tenant is whose operators may use it; empty: those of every tenant, each for its own. Then the
	// context of a request ends with the client and with the caller's credentials, and that of a GET when
	// the server stops, too.
	Tenant string
	// Handler gets the requests that are admitted. [CallerOf] says whose they are.
	Handler http.Handler
	// Upgrades means that its connections leave the listener, as relays do.
	Upgrades bool
	// Refuse answers a request that is not admitted; nil: as the API does.
	Refuse func(w http.ResponseWriter, p apitypes.Problem)
}

// Caller is an authenticated caller, and the tenant that it acts on.
type Caller struct {
	Identity
	On      string // the tenant; never AllTenants
	Request string // ID of the request
}

// callerKey is the key of a Caller in the context of a request.
type callerKey struct{}

// CallerOf returns the sender of a request that an [Other] handles. ctx is that of the request. It
// reports false if [Other.Tenant] is not empty, for all of its callers act on that tenant.
func CallerOf(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// other returns the Other that a path belongs to, or nil.
func (s *Server) other(path string) *Other {
	for i := range s.opt.Others {
		o := &s.opt.Others[i]
		if path == o.Prefix || strings.HasSuffix(o.Prefix, "/") && strings.HasPrefix(path, o.Prefix) {
			return o
		}
	}
	return nil
}

// serveOther passes a request to o. This package authenticates the caller; o handles the
// rest.
func (c *call) serveOther(o *Other) error {
	if err := c.admit(); err != nil {
		return err
	}
	tenant := o.Tenant
	if tenant == "" {
		var err error
		if tenant, err = c.oneTenant(); err != nil {
			return err
		}
	}
	switch {
	case c.who.Role < Operator && o.Tenant == "":
		return refuse(apitypes.CodeForbidden, "", "%s: role %s may not use this: administrators and operators may", o.Prefix, c.who.Role)
	case c.who.Role < Operator || o.Tenant != "" && c.who.Tenant != o.Tenant && !c.who.all():
		return refuse(apitypes.CodeForbidden, "", "%s: administrators and operators of tenant %q may use this", o.Prefix, o.Tenant)
	}
	share, what := c.s.requestShare, "requests"
	if o.Upgrades {
		share, what = c.s.relayShare, "connections"
	}
	who := tenant // whose place it takes: the caller's own, as everywhere, unless the door has one tenant
	if o.Tenant == "" {
		who = c.who.Tenant
	}
	if !share.takePlace(who) {
		return refuse(apitypes.CodeTooManyConnections, "", "%d %s of this tenant are open: close some", share.most, what)
	}
	defer share.freePlace(who)
	if o.Tenant == "" {
		until := c.untilEnded
		if c.r.Method == http.MethodGet { // an endless stream
			until = c.untilStopped
		}
		ctx, cancel := until()
		defer cancel()
		c.r = c.r.WithContext(context.WithValue(ctx, callerKey{}, Caller{c.who, tenant, c.id}))
	}
	http.StripPrefix(strings.TrimSuffix(o.Prefix, "/"), o.Handler).ServeHTTP(c.w, c.r)
	return nil
}
