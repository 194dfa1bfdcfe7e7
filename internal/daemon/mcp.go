package daemon

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/boxd/boxd/api"
	"github.com/boxd/boxd/mcp"
)

// mcpPath is where language models find their tools on the API's listeners.
const mcpPath = "/mcp"

// openMCP opens the door of MCP and returns it as a part of the API's server. It is a client of that
// server, which is made afterwards.
func (d *daemon) openMCP(previews bool) []api.Other {
	c := &d.Config.MCP
	if !c.Enabled {
		return nil
	}
	d.mcp = mcp.NewDoor(mcp.DoorOptions{
		Options: mcp.Options{Version: d.Version, Profile: c.Profile, Scope: c.Scope, SessionTool: c.SessionTool, Previews: previews},
		Logger:  d.log,
		Caller: func(r *http.Request) (mcp.Caller, error) {
			who, ok := api.CallerOf(r.Context())
			if !ok {
				return mcp.Caller{}, errors.New("the request was not authenticated")
			}
			return mcp.Caller{Tenant: who.On, Actor: who.Actor, Key: who.Key, Dial: func(ctx context.Context) (net.Conn, error) { return d.server.Connect(ctx, who) }}, nil
		},
	})
	return []api.Other{{Prefix: mcpPath, Handler: d.mcp, Refuse: mcp.Refuse}}
}
