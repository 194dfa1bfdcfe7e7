package daemon

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/boxd/boxd/api"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/mcp"
	"github.com/boxd/boxd/mcp/gateway"
	"github.com/boxd/boxd/session"
)

// mcpPath is where language models find their tools on the API's listeners. Servers in boxes are below.
const mcpPath = "/mcp"

// openMCP opens the doors of MCP and returns them as parts of the API's server. They are clients of that
// server, which is made afterwards.
func (d *daemon) openMCP(previews bool) (others []api.Other) {
	c := &d.Config.MCP
	if c.Enabled {
		d.mcp = mcp.NewDoor(mcp.DoorOptions{
			Options: mcp.Options{Version: d.Version, Profile: c.Profile, Scope: c.Scope, SessionTool: c.SessionTool, Previews: previews},
			Logger:  d.log,
			Caller:  d.mcpCaller,
		})
		others = append(others, api.Other{Prefix: mcpPath, Handler: d.mcp, Refuse: mcp.Refuse})
	}
	// The next daemon uses the same instance name, and so finds what this one leaves. It makes a gateway without any server, too,
	// to end what removed servers have left.
	o := gateway.Options{Version: d.Version, Instance: "daemon", Logger: d.log, Caller: func(r *http.Request) (gateway.Caller, error) {
		who, err := d.mcpCaller(r)
		if err != nil {
			return gateway.Caller{}, err
		}
		// The connection to a process serves all clients of a shared server, and ends with none of them:
		// package api ends the requests of those whose token is removed.
		lasting, _ := api.CallerOf(r.Context())
		lasting.Gone = nil
		dial := func(ctx context.Context) (net.Conn, error) { return d.server.Connect(ctx, lasting) }
		// As sessions record it; see session.Caller.
		actor := session.Caller{Tenant: lasting.Tenant, Actor: lasting.Actor}.ActorIn(lasting.On)
		return gateway.Caller{Tenant: who.Tenant, Key: who.Key, Actor: actor, Request: lasting.Request, Dial: dial}, nil
	}}
	if d.audit != nil {
		o.Record, o.Recordable = d.recordToolCall, d.audit.Healthy
	}
	for name, s := range d.Config.MCPServers {
		o.Servers = append(o.Servers, boxedServer(name, s))
	}
	d.gateway = gateway.New(o)
	if len(o.Servers) > 0 {
		others = append(others, api.Other{Prefix: mcpPath + "/", Handler: d.gateway, Refuse: mcp.Refuse})
	}
	return others
}

// endLeftMCP ends the servers in boxes that an earlier daemon has left running, unless a client comes back to them.
func (d *daemon) endLeftMCP() {
	d.gateway.EndLeft(func(tenant string) gateway.Caller {
		own := api.Caller{Identity: api.Identity{Tenant: api.AllTenants, Actor: "mcp", Key: "mcp", Role: api.Admin}, On: tenant}
		return gateway.Caller{Tenant: tenant, Dial: func(ctx context.Context) (net.Conn, error) { return d.server.Connect(ctx, own) }}
	})
}

// recordToolCall writes a line of the audit log about a call through the gateway.
func (d *daemon) recordToolCall(c gateway.ToolCall) error {
	decision := map[string]string{gateway.CallOK: audit.Done, gateway.CallRefused: audit.Deny}[c.Verdict]
	return d.audit.Append(audit.Entry{
		Action: "mcp-call", Tenant: c.Caller.Tenant, Actor: c.Caller.Actor, Request: c.Caller.Request, Session: c.Session, Process: c.Process,
		Decision: cmp.Or(decision, audit.Failed), Reason: c.Reason, Details: map[string]any{"server": c.Server, "tool": c.Tool, "verdict": c.Verdict},
	})
}

// mcpCaller returns the sender of a request that package api has admitted.
func (d *daemon) mcpCaller(r *http.Request) (mcp.Caller, error) {
	who, ok := api.CallerOf(r.Context())
	if !ok {
		return mcp.Caller{}, errors.New("the request was not authenticated")
	}
	return mcp.Caller{Tenant: who.On, Actor: who.Actor, Key: who.Key, Dial: func(ctx context.Context) (net.Conn, error) { return d.server.Connect(ctx, who) }}, nil
}

// boxedServer returns what the configuration says about a server.
func boxedServer(name string, c config.MCPServer) gateway.Server {
	s := gateway.Server{
		Name: name, Argv: c.Command, Env: c.Env, Cwd: c.Cwd, Mode: c.Mode, Box: spec.Wishes{Profile: c.Profile},
		Install: c.Install, InstallProfile: c.InstallProfile, InstallSize: c.InstallSize,
		StartTimeout: c.StartTimeout.D(), Idle: c.Idle.D(), MaxSessions: c.MaxSessions, Tools: gateway.Tools(c.Tools), Tenants: c.Tenants,
	}
	for _, m := range c.Mounts {
		s.Box.Mounts = append(s.Box.Mounts, spec.MountWish{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	for _, v := range c.Volumes {
		s.Box.Volumes = append(s.Box.Volumes, spec.VolumeWish(v))
	}
	return s
}
