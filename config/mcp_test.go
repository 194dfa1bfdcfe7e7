package config

import (
	"errors"
	"testing"

	"github.com/boxd/boxd/engine"
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
