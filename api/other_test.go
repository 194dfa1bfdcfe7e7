package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/policy"
)

// A door of another protocol gets the requests of operators and administrators, and who they are. As a
// client of the API it then has their rights.
func TestOther(t *testing.T) {
	var f *fixture
	asCaller := func(w http.ResponseWriter, r *http.Request) {
		who, ok := CallerOf(r.Context())
		if !ok {
			t.Error("a request without a caller")
			return
		}
		c, err := client.New(client.Options{Tenant: who.On, Dial: func(ctx context.Context) (net.Conn, error) { return f.Connect(ctx, who) }})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		made, err := c.Ensure(r.Context(), apitypes.SessionRequest{ID: "made"})
		_, auditErr := c.Update(r.Context(), "made", apitypes.SessionUpdate{})
		fmt.Fprint(w, who.Actor, " on ", who.On, " made ", made.Tenant, " ", err, " ", auditErr)
	}
	f = serve(t, func(o *Options, c *policy.Config) {
		c.Profiles = map[string]policy.ProfileConfig{}
		o.Others = []Other{
			{Prefix: "/door", Handler: http.HandlerFunc(asCaller)},
			{Prefix: "/own/", Tenant: "acme", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "own ", r.URL.Path) })},
			{Prefix: "/form", Handler: http.NotFoundHandler(), Refuse: func(w http.ResponseWriter, p apitypes.Problem) {
				w.WriteHeader(p.Status)
				fmt.Fprint(w, "refused: ", p.Code)
			}},
		}
	})
	for _, c := range []struct {
		path, token, tenant string
		status              int
		says                string
	}{
		{"/door", operatorToken, "", 200, "token:ci on acme made acme <nil> <nil>"},
		{"/door", adminToken, "", 200, "token:root on default made default <nil> <nil>"},
		{"/door", adminToken, "acme", 200, "token:root on acme made acme <nil> <nil>"},
		{"/door", adminToken, "*", 422, "must name one tenant"},
		{"/door", operatorToken, "other", 403, "only administrators"},
		{"/door", viewerToken, "", 403, "role viewer may not use this"},
		{"/door", scraperToken, "acme", 403, "role viewer may not use this"},
		{"/door", "", "", 401, "no credentials"},
		{"/door/below", operatorToken, "", 404, "no such path"},
		{"/doors", operatorToken, "", 404, "no such path"},
		{"/own/x", operatorToken, "", 200, "own /x"},
		{"/own/x", strangerToken, "", 403, `operators of tenant \"acme\"`},
		{"/own/x", viewerToken, "", 403, "operators of tenant"},
		{"/form", viewerToken, "", 403, "refused: forbidden"},
	} {
		header := []string{}
		if c.tenant != "" {
			header = []string{TenantHeader, c.tenant}
		}
		resp, body := f.raw("POST", c.path, c.token, "", header...)
		if resp.StatusCode != c.status || !strings.Contains(string(body), c.says) {
			t.Errorf("%s of %q for %q: %d %s, want %d %s", c.path, c.token, c.tenant, resp.StatusCode, body, c.status, c.says)
		}
	}
}

// A request at a door ends when the caller's token is removed, whatever its method.
func TestOtherEnds(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		tokens, err := tokensOf(strings.NewReader(operatorToken + " acme operator ci\n"))
		if err != nil {
			t.Fatal(err)
		}
		none := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(none, []byte(strangerToken+" other operator x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f := serve(t, func(o *Options, _ *policy.Config) {
			o.Auth.Tokens = tokens
			o.Others = []Other{{Prefix: "/door", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := tokens.Reload(none); err != nil {
					t.Error(err)
				}
				select {
				case <-r.Context().Done():
				case <-time.After(10 * time.Second): // the test fails
				}
				fmt.Fprint(w, context.Cause(r.Context()))
			})}}
		})
		if _, body := f.raw(method, "/door", operatorToken, ""); string(body) != errEnded.Error() {
			t.Errorf("%s: %q", method, body)
		}
	}
}

// What a door asks of the API counts with the request that it serves, and not again.
func TestConnectRates(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) {
		o.Auth.Tokens, _ = tokensOf(strings.NewReader(operatorToken + " acme operator ci requests=0.001 requests_burst=1 creates=0.001 creates_burst=1\n"))
	})
	id, _ := f.opt.Auth.Tokens.lookup(operatorToken)
	c, err := client.New(client.Options{Dial: func(ctx context.Context) (net.Conn, error) { return f.Connect(ctx, Caller{Identity: id, On: "acme"}) }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		if _, err := c.Ensure(t.Context(), apitypes.SessionRequest{ID: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Ensure(t.Context(), apitypes.SessionRequest{ID: "b"}); !client.IsCode(err, apitypes.CodeRate) {
		t.Errorf("a second box: %v, want the rate of creates", err)
	}
	if _, err := f.as(operatorToken, "").Sessions(t.Context()); err != nil {
		t.Errorf("the first request from outside: %v", err)
	}
	if err := f.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Connect(t.Context(), Caller{Identity: id, On: "acme"}); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("after shutdown: %v", err)
	}
}
