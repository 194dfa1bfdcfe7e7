package config

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// What the tools for language models are configured with is checked before the daemon starts.
func TestMCP(t *testing.T) {
	for _, c := range []struct {
		mcp   MCP
		field string
	}{
		{MCP{Enabled: true}, ""},
		{MCP{Profile: "offline_readonly", Scope: "mcp-{client:-{actor}}"}, ""},
		{MCP{Profile: "no"}, "mcp.profile"},
		{MCP{Scope: "{"}, "mcp.scope"},
	} {
		config := Default()
		config.MCP = c.mcp
		err := config.Validate()
		bad, _ := errors.AsType[*engine.FieldError](err)
		if c.field == "" && err != nil || c.field != "" && (bad == nil || bad.Field != c.field) {
			t.Errorf("%+v: %v, want %q refused", c.mcp, err, c.field)
		}
	}
}

// What is wrong with a server is said before the daemon starts.
func TestMCPServers(t *testing.T) {
	good := MCPServer{Command: []string{"x"}, Mode: "session", Tools: MCPTools{Pin: "sha256:" + strings.Repeat("a", 64), Changed: "report"}, Idle: spec.Duration(time.Second), Tenants: []string{"a"}}
	with := func(change func(*MCPServer)) MCPServer {
		s := good
		change(&s)
		return s
	}
	for _, c := range []struct {
		name   string
		server MCPServer
		field  string
	}{
		{"a-1", good, ""},
		{"", good, "mcp_servers"}, {"A", good, "mcp_servers"}, {"-a", good, "mcp_servers"}, {"a/b", good, "mcp_servers"}, {strings.Repeat("a", 33), good, "mcp_servers"}, {"a-install", good, "mcp_servers"},
		{"a", with(func(s *MCPServer) { s.Command = nil }), "mcp_servers.a.command"},
		{"a", with(func(s *MCPServer) { s.Command = []string{""} }), "mcp_servers.a.command"},
		{"a", with(func(s *MCPServer) { s.Mode = "stateless" }), "mcp_servers.a.mode"},
		{"a", with(func(s *MCPServer) { s.Profile = "none" }), "mcp_servers.a.profile"},
		{"a", with(func(s *MCPServer) { s.InstallProfile = "none" }), "mcp_servers.a.install_profile"},
		{"a", with(func(s *MCPServer) { s.InstallSize = 1 }), "mcp_servers.a.install_size"},
		{"a", with(func(s *MCPServer) { s.Idle = 1 }), "mcp_servers.a.idle"},
		{"a", with(func(s *MCPServer) { s.StartTimeout = -1 }), "mcp_servers.a.start_timeout"},
		{"a", with(func(s *MCPServer) { s.MaxSessions = -1 }), "mcp_servers.a.max_sessions"},
		{"a", with(func(s *MCPServer) { s.Tools.Pin = "sha256:" + strings.Repeat("A", 64) }), "mcp_servers.a.tools.pin"},
		{"a", with(func(s *MCPServer) { s.Tools.Pin = "aaaa" }), "mcp_servers.a.tools.pin"},
		{"a", with(func(s *MCPServer) { s.Tools.Changed = "ignore" }), "mcp_servers.a.tools.changed"},
		{"a", with(func(s *MCPServer) { s.Tenants = []string{"../x"} }), "mcp_servers.a.tenants"},
	} {
		config := Default()
		config.MCPServers = map[string]MCPServer{c.name: c.server}
		err := config.Validate()
		bad, _ := errors.AsType[*engine.FieldError](err)
		if c.field == "" && err != nil || c.field != "" && (bad == nil || bad.Field != c.field) {
			t.Errorf("%s %+v: %v, want %q refused", c.name, c.server, err, c.field)
		}
	}
}
