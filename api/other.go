package api

import (
	"net/http"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
)

// Other serves another protocol below Prefix, such as "/langbot/", for the operators of
// Tenant. Its Handler sees the rest of the path.
type Other struct {
	Prefix  string // begins and ends with "/"
	Tenant  string
	Handler http.Handler
}

// other returns the Other that a path belongs to, or nil.
func (s *Server) other(path string) *Other {
	for i := range s.opt.Others {
		if o := &s.opt.Others[i]; strings.HasPrefix(path, o.Prefix) {
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
	if c.who.Role < Operator || c.who.Tenant != o.Tenant && !c.who.all() {
		return refuse(apitypes.CodeForbidden, "", "%s: administrators and operators of tenant %q may use this", o.Prefix, o.Tenant)
	}
	if !c.s.relayShare.takePlace(o.Tenant) { // its connections leave the listener, as relays do
		return refuse(apitypes.CodeTooManyConnections, "", "%d connections of this tenant are open: close some", c.s.relayShare.most)
	}
	defer c.s.relayShare.freePlace(o.Tenant)
	http.StripPrefix(strings.TrimSuffix(o.Prefix, "/"), o.Handler).ServeHTTP(c.w, c.r)
	return nil
}
