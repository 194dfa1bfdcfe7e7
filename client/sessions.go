package client

import (
	"context"

	"github.com/boxd/boxd/api/apitypes"
)

// Sessions lists the sessions of the tenant.
func (c *Client) Sessions(ctx context.Context) ([]apitypes.Session, error) {
	var l apitypes.SessionList
	err := c.do(ctx, call{method: "GET", path: []string{"sessions"}}, &l)
	return l.Sessions, err
}

// Session returns a session. Looking is not use: it does not put off its end.
func (c *Client) Session(ctx context.Context, id string) (apitypes.Session, error) {
	var s apitypes.Session
	err := c.do(ctx, call{method: "GET", path: []string{"sessions", id}}, &s)
	return s, err
}

// Ensure returns the session that r describes, and makes it if it is not there.
// Code "session_conflict": it is there, and differs.
func (c *Client) Ensure(ctx context.Context, r apitypes.SessionRequest) (apitypes.Session, error) {
	var s apitypes.Session
	err := c.do(ctx, call{method: "POST", path: []string{"sessions"}, body: r}, &s)
	return s, err
}

// Update changes mounts, network, TTL and limits of a live session.
func (c *Client) Update(ctx context.Context, id string, u apitypes.SessionUpdate) (apitypes.Session, error) {
	var s apitypes.Session
	err := c.do(ctx, call{method: "PATCH", path: []string{"sessions", id}, body: u}, &s)
	return s, err
}

// Remove ends a session with all that runs in it, and removes its workspace if that
// is boxd's own.
func (c *Client) Remove(ctx context.Context, id string) error {
	return c.do(ctx, call{method: "DELETE", path: []string{"sessions", id}}, nil)
}

// Usage is what the session's box uses now.
func (c *Client) Usage(ctx context.Context, id string) (apitypes.Usage, error) {
	var u apitypes.Usage
	err := c.do(ctx, call{method: "GET", path: []string{"sessions", id, "usage"}}, &u)
	return u, err
}

// Ports lists what listens in the session's box.
func (c *Client) Ports(ctx context.Context, id string) ([]apitypes.Port, error) {
	var l apitypes.PortList
	err := c.do(ctx, call{method: "GET", path: []string{"sessions", id, "ports"}}, &l)
	return l.Ports, err
}
