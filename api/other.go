package api

import (
	"net/http"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
)

// Other is the door of another protocol, which is served to those who may operate
// Tenant: below Prefix, such as "/langbot/", and with paths from there on.
type Other struct {
	Prefix  string // begins and ends with "/"
	Tenant  string
	Handler http.Handler
}

// other finds the door that a path belongs to.
func (s *Server) other(path string) *Other {
	for i := range s.opt.Others {
		if o := &s.opt.Others[i]; strings.HasPrefix(path, o.Prefix) {
			return o
		}
	}
	return nil
}

// serveOther hands a request to another door. Who asks is decided here; what is asked
// is that door's business.
func (c *call) serveOther(o *Other) error {
	if err := c.admit(); err != nil {
		return err
	}
	if c.who.Role < Operator || c.who.Tenant != o.Tenant && !c.who.all() {
		return refuse(apitypes.CodeForbidden, "", "%s: administrators and operators of tenant %q may use this", o.Prefix, o.Tenant)
	}
	if !c.s.relayShare.take(o.Tenant) { // its connections are none of the listener's
		return refuse(apitypes.CodeTooManyConnections, "", "%d connections of this tenant are open: close some", c.s.relayShare.most)
	}
	defer c.s.relayShare.give(o.Tenant)
	http.StripPrefix(strings.TrimSuffix(o.Prefix, "/"), o.Handler).ServeHTTP(c.w, c.r)
	return nil
}
