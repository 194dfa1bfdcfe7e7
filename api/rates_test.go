package api

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// slow is one event in a thousand seconds, so that a test sees no second one.
const slow = 0.001

func TestRates(t *testing.T) {
	f := serve(t, func(o *Options, c *policy.Config) {
		tokens, err := tokensOf(strings.NewReader(tokenFile + "one-more-token-0123456789 acme operator slow execs=" + "0.001 requests=0.001 requests_burst=4"))
		if err != nil {
			t.Fatal(err)
		}
		o.Auth.Tokens = tokens
		c.Tenants = map[string]policy.Tenant{"acme": {Rates: policy.Rates{Creates: slow, CreatesBurst: 2, Requests: 1000}}, "other": {Rates: policy.Rates{Requests: slow}}}
	})
	ours := f.as(operatorToken, "")
	ensure(t, ours, "a")
	ensure(t, ours, "a") // is there
	ensure(t, ours, "b")
	resp, body := f.raw("POST", "/v1/sessions", operatorToken, `{"id":"c"}`)
	p := checkProblem(t, resp, body)
	if p.Status != http.StatusTooManyRequests || p.Code != apitypes.CodeRate || p.Limit != "creates" || p.Scope != "tenant" || p.Holder != "acme" ||
		p.Value != "0.001 per second, burst 2" || p.RetryAfter < 900 || p.RetryAfter > 1000 || resp.Header.Get("Retry-After") == "" ||
		!strings.HasPrefix(p.Detail, `tenant "acme": creates: limit 0.001 per second, burst 2: retry in `) {
		t.Errorf("%+v, %v", p, resp.Header)
	}
	if _, err := f.sessions.Get(session.Key{Tenant: "acme", ID: "c"}); err == nil {
		t.Error("the session was made")
	}
	// An administrator who acts for the tenant is counted for it, and not for its own one.
	if _, err := f.as(adminToken, "acme").Ensure(t.Context(), apitypes.SessionRequest{ID: "d"}); !isCode(err, apitypes.CodeRate) {
		t.Error(err)
	}
	ensure(t, f.as(adminToken, ""), "c")

	// The limits of one token are not those of another one of the tenant.
	const slowToken = "one-more-token-0123456789"
	theirs := f.as(slowToken, "")
	exec := apitypes.ExecRequest{Argv: []string{"true"}}
	if _, err := theirs.Exec(t.Context(), "a", exec); err != nil {
		t.Fatal(err)
	}
	_, err := theirs.ExecStream(t.Context(), "a", exec, nil, nil)
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Code != apitypes.CodeRate || refused.Scope != "token" || refused.Holder != "slow" || refused.RetryAfter < 900 || strings.Contains(err.Error(), "\n") {
		t.Errorf("%+v", err)
	}
	if _, err := theirs.Start(t.Context(), "a", apitypes.ProcessRequest{ID: "p", Argv: []string{"sleep", "9"}}); !isCode(err, apitypes.CodeRate) {
		t.Error(err)
	}
	for range 3 {
		if _, err := ours.Exec(t.Context(), "a", exec); err != nil {
			t.Error(err)
		}
	}
	if p := f.problem("GET", "/v1/nowhere", slowToken, ""); p.Code != apitypes.CodeNoRoute {
		t.Errorf("%+v", p)
	}
	for _, path := range []string{"/v1/nowhere", "/v1/sessions", "/metrics"} { // whatever is asked for
		if p := f.problem("GET", path, slowToken, ""); p.Code != apitypes.CodeRate || p.Limit != "requests" {
			t.Errorf("%s: %+v", path, p)
		}
	}
	if _, err := theirs.AttachOnce(t.Context(), "a", "p", client.AttachOptions{}); !isCode(err, apitypes.CodeRate) {
		t.Errorf("a relay: %v", err)
	}

	stranger := f.as(strangerToken, "")
	if _, err := stranger.Sessions(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := stranger.Sessions(t.Context()); !isCode(err, apitypes.CodeRate) {
		t.Error(err)
	}
	if resp, _ := f.raw("GET", "/healthz", "", ""); resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
	if _, metrics := f.raw("GET", "/metrics", scraperToken, ""); !strings.Contains(string(metrics), `boxd_rate_refusals_total{limit="requests",scope="token"} 4`) {
		t.Errorf("%s", metrics)
	}
}

// A token that is read again keeps what it has counted, unless its limits have changed.
func TestReloadedRates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(tokenFile)
	tokens, err := LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	const token = "limited-token-0123456789"
	limits := func(line string) *policy.Limiter {
		t.Helper()
		write(line)
		if err := tokens.Reload(path); err != nil {
			t.Fatal(err)
		}
		id, ok := tokens.lookup(token)
		if !ok {
			t.Fatal("the token is not there")
		}
		return id.Limits
	}
	first := limits(token + " acme viewer ci requests=5 scope={user!}")
	if first == nil || limits("# changed\n"+token+" acme viewer ci requests_burst=5 requests=5") != first {
		t.Error("the limiter was replaced")
	}
	if other := limits(token + " acme viewer ci requests=6"); other == first {
		t.Error("the limit was not changed")
	}
	if limits(token+" acme viewer") != nil {
		t.Error("a token without limits has some")
	}
	for line, want := range map[string]string{
		"acme viewer ci request=5":            `unknown option "request="`,
		"acme viewer requests=fast":           `requests "fast": must be a number per second`,
		"acme viewer requests=5 requests=6":   "requests= is there twice",
		"acme viewer ci execs_burst=5":        "execs_burst 5: has no use without execs",
		"acme viewer ci requests=-2":          "requests -2: must be",
		"acme viewer requests=5 ci":           "5 fields",
		"acme viewer ci scope={ requests=0.5": "scope",
	} {
		if _, err := tokensOf(strings.NewReader(token + " " + line)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
