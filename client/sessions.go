package client

import (
	"context"
	"net/url"

	"github.com/boxd/boxd/api/apitypes"
)

// Sessions lists the sessions of the tenant that have all of labels, sorted by tenant and ID. A
// label is "key=value", or "key" for any value.
func (c *Client) Sessions(ctx context.Context, labels ...string) ([]apitypes.Session, error) {
	l, err := fetch[apitypes.SessionList](ctx, c, call{method: "GET", path: []string{"sessions"}, query: url.Values{"label": labels}})
	return l.Sessions, err
}

// Session returns a session as it is now. It does not count as use: the session's idle
// TTL keeps running.
func (c *Client) Session(ctx context.Context, session string) (apitypes.Session, error) {
	return fetch[apitypes.Session](ctx, c, call{method: "GET", path: []string{"sessions", session}})
}

// Ensure returns the session that r describes and creates it if it does not exist;
// Session.Created tells which. An existing session that differs from r is an error with
// apitypes.CodeSessionConflict, whose Conflicts list the differences.
func (c *Client) Ensure(ctx context.Context, r apitypes.SessionRequest) (apitypes.Session, error) {
	return fetch[apitypes.Session](ctx, c, call{method: "POST", path: []string{"sessions"}, body: r})
}

// Update changes mounts, network, TTLs and limits of a live session. Fields of u that
// are not set stay as they are.
func (c *Client) Update(ctx context.Context, session string, u apitypes.SessionUpdate) (apitypes.Session, error) {
	return fetch[apitypes.Session](ctx, c, call{method: "PATCH", path: []string{"sessions", session}, body: u})
}

// Pause stops everything that runs in a session, until Resume. Pausing a paused one does nothing.
func (c *Client) Pause(ctx context.Context, session string) (apitypes.Session, error) {
	return fetch[apitypes.Session](ctx, c, call{method: "POST", path: []string{"sessions", session, "pause"}})
}

// PauseReclaim is Pause, and then gives memory of the session to the host, within some two seconds. Session.ReclaimedBytes of
// the answer says how much. A host that cannot is an error with apitypes.CodeUnenforceable, and nothing is paused.
func (c *Client) PauseReclaim(ctx context.Context, session string) (apitypes.Session, error) {
	return fetch[apitypes.Session](ctx, c, call{method: "POST", path: []string{"sessions", session, "pause"}, body: apitypes.PauseRequest{Reclaim: true}})
}

// Resume ends Pause. Resuming a session that is not paused does nothing.
func (c *Client) Resume(ctx context.Context, session string) (apitypes.Session, error) {
	return fetch[apitypes.Session](ctx, c, call{method: "POST", path: []string{"sessions", session, "resume"}})
}

// Remove ends a session with everything that runs in it. Its workspace is deleted if
// boxd made it, and kept if it is a directory of the caller.
func (c *Client) Remove(ctx context.Context, session string) error {
	return c.do(ctx, call{method: "DELETE", path: []string{"sessions", session}}, nil)
}

// Usage returns what the session's box uses at this moment.
func (c *Client) Usage(ctx context.Context, session string) (apitypes.Usage, error) {
	return fetch[apitypes.Usage](ctx, c, call{method: "GET", path: []string{"sessions", session, "usage"}})
}

// Network describes the network of a session's box.
func (c *Client) Network(ctx context.Context, session string) (apitypes.Network, error) {
	return fetch[apitypes.Network](ctx, c, call{method: "GET", path: []string{"sessions", session, "network"}})
}

// Ports lists the TCP and UDP ports that processes of the session's box listen on.
func (c *Client) Ports(ctx context.Context, session string) ([]apitypes.Port, error) {
	l, err := c.PortList(ctx, session)
	return l.Ports, err
}

// PortList is Ports with the ports of the host that the session publishes.
func (c *Client) PortList(ctx context.Context, session string) (apitypes.PortList, error) {
	return fetch[apitypes.PortList](ctx, c, call{method: "GET", path: []string{"sessions", session, "ports"}})
}
