package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/policy"
)

func TestTokenScope(t *testing.T) {
	tokens, err := tokensOf(strings.NewReader(operatorToken + " acme operator ci scope=ci-{job!}\n" + adminToken + " acme admin scope={:uuid}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]Identity{
		operatorToken: {Tenant: "acme", Actor: "token:ci", Role: Operator, Scope: "ci-{job!}"},
		adminToken:    {Tenant: "acme", Role: Admin, Scope: "{:uuid}"},
	} {
		id, ok := tokens.lookup(token)
		want.Key, want.Gone = id.Key, id.Gone
		if want.Actor == "" {
			want.Actor = "token:" + strings.TrimPrefix(id.Key, "token:")[:shownKey]
		}
		if !ok || id != want {
			t.Errorf("%+v, %v, want %+v", id, ok, want)
		}
	}
	if _, err := tokensOf(strings.NewReader(operatorToken + " acme operator ci scope={job\n")); err == nil || !strings.Contains(err.Error(), "line 1: scope") {
		t.Errorf("%v, want the scope refused", err)
	}
}

// A request with neither ID nor scope has the default of its token, its profile or its door, in
// this order.
func TestDefaultScope(t *testing.T) {
	text := func(s string) *string { return &s }
	f := serve(t, func(o *Options, c *policy.Config) {
		o.Scope = "door"
		o.Auth.Tokens, _ = tokensOf(strings.NewReader(operatorToken + " acme operator ci scope=token-{job!}\n" + adminToken + " other operator\n"))
		c.Profiles = map[string]policy.ProfileConfig{"chat": {Scope: text("chat-{user}")}}
		c.Tenants = map[string]policy.Tenant{"acme": {StrictScopes: true}}
	})
	for _, c := range []struct{ token, body, id, field string }{
		{adminToken, `{}`, "door", ""},
		{adminToken, `{"id":"mine"}`, "mine", ""},
		{adminToken, `{"scope":"own"}`, "own", ""},
		{adminToken, `{"profile":"chat","variables":{"user":"u1"}}`, "chat-u1", ""},
		{adminToken, `{"profile":"chat"}`, "chat-unknown", ""},
		{adminToken, `{"id":"a","scope":"b"}`, "", "id"},
		{adminToken, `{"default_scope":"asked"}`, "asked", ""},
		{adminToken, `{"default_scope":"asked","profile":"chat"}`, "chat-unknown", ""},
		{adminToken, `{"default_scope":"asked-{mcp_session}","strict_scope":true}`, "", "variables.mcp_session"},
		{adminToken, `{"profile":"chat","strict_scope":true}`, "", "variables.user"},
		{adminToken, `{"default_scope":"asked-{mcp_session:-{user}}","variables":{"user":"u"},"strict_scope":true}`, "asked-u", ""},
		{operatorToken, `{"default_scope":"asked","variables":{"job":"7"}}`, "token-7", ""},
		{operatorToken, `{"variables":{"job":"7"}}`, "token-7", ""},
		{operatorToken, `{}`, "", "variables.job"},
		{operatorToken, `{"profile":"chat","variables":{"job":"8"}}`, "token-8", ""},
		{operatorToken, `{"scope":"x-{user}"}`, "", "variables.user"}, // strict
		{operatorToken, `{"scope":"x-{user:-all}"}`, "x-all", ""},
	} {
		if c.field != "" {
			if p := f.problem("POST", "/v1/sessions", c.token, c.body); p.Code != apitypes.CodeInvalid || p.Field != c.field {
				t.Errorf("%s: %+v, want %s refused", c.body, p, c.field)
			}
			continue
		}
		var s apitypes.Session
		r, body := f.raw("POST", "/v1/sessions", c.token, c.body)
		if err := json.Unmarshal(body, &s); err != nil || r.StatusCode != 200 || s.ID != c.id {
			t.Errorf("%s: %d, %s, want %q", c.body, r.StatusCode, body, c.id)
		}
	}
}
