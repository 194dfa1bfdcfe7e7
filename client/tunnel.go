package client

import (
	"context"
	"strconv"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/preview"
)

// Link makes a link to a TCP port of the session's box: everyone who has it sees what a server there
// serves. The link is valid for the time ttl; 0: an hour.
func (c *Client) Link(ctx context.Context, session string, port int, ttl time.Duration) (apitypes.Link, error) {
	return fetch[apitypes.Link](ctx, c, call{method: "POST", path: []string{"sessions", session, "links"}, body: apitypes.LinkRequest{Port: port, TTL: apitypes.Duration(ttl)}})
}

// RevokeLinks makes all links to the session's box invalid, and ends what they have opened before it
// returns.
func (c *Client) RevokeLinks(ctx context.Context, session string) error {
	return c.do(ctx, call{method: "DELETE", path: []string{"sessions", session, "links"}}, nil)
}

// Tunnel opens a connection to a TCP port of the session's box, for [preview.Forward]. ctx bounds
// the opening only. If nothing listens on the port, or the session has no box, the error is a
// *preview.TunnelError, whose Text says so.
func (c *Client) Tunnel(ctx context.Context, session string, port int) (*preview.Tunnel, error) {
	address, err := c.url([]string{"sessions", session, "tunnels", strconv.Itoa(port)}, nil)
	if err != nil {
		return nil, err
	}
	t, err := preview.TunnelDialer{URL: address, NetDial: c.dial, TLS: c.tls, Header: c.header.Clone()}.Dial(ctx)
	return t, attachError(err)
}
