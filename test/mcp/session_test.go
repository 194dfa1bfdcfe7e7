package mcp

import (
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/client"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Which session a client works in follows from its token and program. Nobody gets into another's.
func TestSessions(t *testing.T) {
	s := start(t, "")
	write := func(c *sdk.ClientSession, text string) {
		t.Helper()
		call(t, c, "write_file", args{"path": "who", "content": text}, nil)
	}
	read := func(c *sdk.ClientSession) string {
		t.Helper()
		return textOf(try(t, c, "read_file", args{"path": "who"}))
	}
	one := s.connect(t, tokenA, "2026-07-28", nil)
	write(one, "one")
	if got := read(s.connect(t, tokenA, "2025-11-25", nil)); got != "one" {
		t.Errorf("the same token and program, by another revision, find %q", got)
	}
	two, b := s.connect(t, tokenA2, "2025-11-25", nil), s.connect(t, tokenB, "", nil)
	for name, c := range map[string]*sdk.ClientSession{"another token": two, "another tenant": b, "stdin": s.stdio(t, "", nil)} {
		if got := read(c); got == "one" {
			t.Errorf("%s: finds the file", name)
		}
	}
	if got := s.sessions(t, "a"); len(got) != 2 || !slices.Contains(got, "by-test-program") || !strings.HasPrefix(got[1], "mcp-token-one-test-program-") {
		t.Errorf("sessions of a: %q", got)
	}
	// The ID has the token's name, and more than that: another token with the name is another caller.
	if a, b := s.sessions(t, "a"), s.sessions(t, "b"); len(b) != 1 || !strings.HasPrefix(b[0], "mcp-token-one-test-program-") || b[0] == a[1] {
		t.Errorf("sessions of a: %q, of b: %q", a, b)
	}
	// Without mcp.session_tool, no argument names another session.
	if res := try(t, one, "exec", args{"command": "true", "session": "other"}); !res.IsError || slices.Contains(s.sessions(t, "a"), "other") {
		t.Errorf("an argument session without session_tool: %q; sessions of a: %q", textOf(res), s.sessions(t, "a"))
	}
	write(s.stdio(t, "", nil, "--session", "named"), "named")
	if got := s.sessions(t, "default"); !slices.Contains(got, "named") || len(got) != 2 {
		t.Errorf("sessions of default: %q", got)
	}
	write(s.stdio(t, "", nil, "--scope", "x-{client}-{client_version}"), "scoped")
	if got := s.sessions(t, "default"); !slices.Contains(got, "x-test-program-1") {
		t.Errorf("sessions of default: %q", got)
	}
}

// The configuration decides about the profile, the scope, the tool session and previews.
func TestConfigured(t *testing.T) {
	s := start(t, `
mcp:
  profile: offline_readonly
  scope: "s-{mcp_session:-{client}}"
  session_tool: true
preview:
  url: http://preview.localhost:8443
  listen: 127.0.0.1:0
profiles:
  reached: {extends: default, allow_network: true}
`)
	c := s.connect(t, tokenA, "2025-11-25", nil)
	mention(t, c.InitializeResult().Instructions, "Network: none")
	tools, err := c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, tool := range tools.Tools {
		names[tool.Name] = true
		if properties := tool.InputSchema.(map[string]any)["properties"].(map[string]any); properties["session"] == nil {
			t.Errorf("%s has no argument session", tool.Name)
		}
		if tool.Name == "exec" && *tool.Annotations.OpenWorldHint {
			t.Error("exec is open to the world without a network")
		}
	}
	if !names["session"] || !names["preview"] {
		t.Errorf("tools: %v", names)
	}
	call(t, c, "exec", args{"command": "true"}, nil)
	call(t, c, "exec", args{"command": "true", "session": "other"}, nil)
	call(t, s.connect(t, tokenA, "2026-07-28", nil), "exec", args{"command": "true"}, nil)
	ids := s.sessions(t, "a")
	if len(ids) != 3 || !slices.Contains(ids, "other") || !slices.Contains(ids, "s-test-program") {
		t.Errorf("sessions: %q", ids)
	}
	var list struct {
		Sessions []struct{ Session, Profile string }
	}
	call(t, c, "session", args{"action": "list"}, &list)
	if len(list.Sessions) != 3 || list.Sessions[0].Profile != "offline_readonly" {
		t.Errorf("sessions: %+v", list)
	}
	call(t, c, "session", args{"action": "end", "session": "other"}, nil)
	if ids := s.sessions(t, "a"); slices.Contains(ids, "other") {
		t.Errorf("sessions: %q", ids)
	}
	// The names of another tenant's sessions mean sessions of one's own.
	call(t, s.connect(t, tokenB, "", nil), "session", args{"action": "end", "session": "s-test-program"}, nil)
	if ids := s.sessions(t, "a"); !slices.Contains(ids, "s-test-program") {
		t.Errorf("a caller of b has ended a session of a: %q", ids)
	}
	if res := try(t, c, "preview", args{"port": 8000}); !res.IsError {
		t.Error("a box without a network is shown")
	}
	// An operator may show what its profile may have a network for.
	own, err := client.New(client.Options{Socket: s.Socket(), Tenant: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	shown := s.stdio(t, "", nil, "--tenant", "a", "--session", "shown", "--profile", "reached")
	call(t, shown, "start_process", args{"argv": []string{"python3", "-m", "http.server", "8000"}, "process": "web"}, nil)
	var link struct{ URL string }
	call(t, shown, "preview", args{"port": 8000}, &link)
	if !strings.HasPrefix(link.URL, "http://8000-shown.a.preview.localhost:8443/?") {
		t.Errorf("link: %q", link.URL)
	}
}

// A scope with a value that a call does not have gives nobody a box that others share.
func TestScopeWithoutValue(t *testing.T) {
	s := start(t, "mcp: {scope: 's-{mcp_session}'}")
	call(t, s.connect(t, tokenA, "2025-11-25", nil), "exec", args{"command": "true"}, nil)
	res := try(t, s.connect(t, tokenA, "2026-07-28", nil), "exec", args{"command": "true"})
	if !res.IsError {
		t.Error("a call without a session of the protocol has a box")
	}
	mention(t, textOf(res), "variables.mcp_session", "{mcp_session:-other}")
	if ids := s.sessions(t, "a"); len(ids) != 1 || ids[0] == "s-unknown" {
		t.Errorf("sessions: %q", ids)
	}
}

// mcp.enabled: false leaves nothing at the path.
func TestDisabled(t *testing.T) {
	s := start(t, "mcp: {enabled: false}")
	if status, body, _ := s.post(t, tokenA, initialize(1)); status != 404 || !strings.Contains(string(body), "no_such_route") {
		t.Errorf("%d %s", status, body)
	}
}
