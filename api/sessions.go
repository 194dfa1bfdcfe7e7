package api

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

func (c *call) listSessions() error {
	chosen, err := spec.ParseSelector(c.values["label"])
	if err != nil {
		return err
	}
	views := c.s.opt.Sessions.List(c.listTenant())
	views = slices.DeleteFunc(views, func(v session.View) bool { return !chosen.Matches(v.Resolved.Labels) })
	list := apitypes.SessionList{Sessions: make([]apitypes.Session, len(views))}
	for i := range views {
		list.Sessions[i] = c.session(&views[i])
	}
	return c.reply(http.StatusOK, list)
}

func (c *call) ensureSession() error {
	var q apitypes.SessionRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	tenant, err := c.oneTenant()
	if err != nil {
		return err
	}
	if q.ID != "" && q.Scope != "" {
		return &engine.FieldError{Field: "id", Value: spec.Quote(q.ID), Rule: "must be absent if scope is given"}
	}
	r := policy.Request{Wishes: q.SessionSpec, Scope: q.Scope, Variables: q.Variables, TokenScope: c.who.Scope, DoorScope: cmp.Or(q.DefaultScope, c.s.opt.Scope), StrictScope: q.StrictScope}
	v, err := c.s.opt.Sessions.Ensure(c.r.Context(), c.caller(), session.Key{Tenant: tenant, ID: q.ID}, r)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, c.session(&v))
}

func (c *call) getSession(key session.Key) error {
	v, err := c.s.opt.Sessions.Get(key)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, c.session(&v))
}

func (c *call) updateSession(key session.Key) error {
	var q apitypes.SessionUpdate
	if err := c.decode(&q); err != nil {
		return err
	}
	v, err := c.s.opt.Sessions.Update(c.r.Context(), c.caller(), key, q)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, c.session(&v))
}

func (c *call) pauseSession(key session.Key) error {
	var q apitypes.PauseRequest
	if c.r.ContentLength != 0 { // the body is optional
		if err := c.decode(&q); err != nil {
			return err
		}
	}
	pause := c.s.opt.Sessions.Pause
	if q.Reclaim {
		pause = c.s.opt.Sessions.PauseReclaim
	}
	v, err := pause(c.r.Context(), c.caller(), key)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, c.session(&v))
}

func (c *call) resumeSession(key session.Key) error {
	v, err := c.s.opt.Sessions.Resume(c.r.Context(), c.caller(), key)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, c.session(&v))
}

func (c *call) removeSession(key session.Key) error {
	if err := c.s.opt.Sessions.Remove(c.r.Context(), c.caller(), key); err != nil {
		return err
	}
	return c.empty()
}

func (c *call) usage(key session.Key) error {
	box, err := c.s.opt.Sessions.Peek(key)
	if err != nil {
		return err
	}
	var u engine.Usage
	if box != nil {
		if u, err = box.Usage(); err != nil {
			return err
		}
	}
	return c.reply(http.StatusOK, apitypes.Usage{Memory: u.Memory, PIDs: u.PIDs, CPU: durationPtr(u.CPU), Throttled: durationPtr(u.Throttled)})
}

func (c *call) network(key session.Key) error {
	v, err := c.s.opt.Sessions.Network(key)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, apitypes.Network{On: v.On, Live: connectionsOf(v.Live), Recent: connectionsOf(v.Recent), Denied: append([]apitypes.Denial{}, denialsOf(v.Denied)...)})
}

func connectionsOf(list []session.Connection) []apitypes.Connection {
	out := []apitypes.Connection{}
	for _, c := range list {
		var one apitypes.Connection
		spec.CopyFields(&one, c)
		one.Duration = apitypes.Duration(c.Duration)
		if c.Address.IsValid() {
			one.Address = c.Address.String()
		}
		out = append(out, one)
	}
	return out
}

func denialsOf(list []session.Denial) (out []apitypes.Denial) {
	for _, d := range list {
		out = append(out, apitypes.Denial(d))
	}
	return out
}

func (c *call) ports(key session.Key) error {
	ports, err := c.s.opt.Sessions.Ports(key)
	if err != nil {
		return err
	}
	v, err := c.s.opt.Sessions.Get(key)
	if err != nil {
		return err
	}
	list := apitypes.PortList{Ports: []apitypes.Port{}, Published: publishedOf(v.Published)}
	for _, p := range ports {
		list.Ports = append(list.Ports, apitypes.Port(p))
	}
	return c.reply(http.StatusOK, list)
}
