package mcp

import (
	"context"
	"errors"
	"io"

	"github.com/boxd/boxd/client"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// StdioOptions of [ServeStdio].
type StdioOptions struct {
	Options
	// Client talks to the daemon with the rights of the user, and is not closed.
	Client *client.Client
	// Actor names the caller. Key distinguishes callers who share a tenant.
	Actor, Key string
	// In and Out carry the messages, a line each. They are closed.
	In  io.ReadCloser
	Out io.WriteCloser
}

// ServeStdio serves the protocol on In and Out until In ends or ctx does. It fails if the daemon cannot be
// reached at first. Calls in progress then end with their commands.
func ServeStdio(ctx context.Context, o StdioOptions) error {
	profile, err := profileOf(ctx, o.Client, o.Profile)
	if err != nil {
		return err
	}
	who := caller{client: o.Client, actor: o.Actor, key: o.Key, close: func() {}}
	server := newServer(o.Options, profile, func(*sdk.RequestExtra) (caller, error) { return who, nil })
	err = server.Run(ctx, &sdk.IOTransport{Reader: o.In, Writer: o.Out, MaxLineLength: maxBody})
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
