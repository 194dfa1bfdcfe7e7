package api

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/policy"
)

// A tenant whose requests or relays take up what they may does not lock out others.
func TestTenantsShare(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) { o.MaxConnections, o.MaxRelays = 8, 8 })
	c := f.as(operatorToken, "")
	ensure(t, c, "a")
	if _, err := c.Start(t.Context(), "a", apitypes.ProcessRequest{ID: "p", Argv: []string{"sleep", "55"}}); err != nil {
		t.Fatal(err)
	}
	for range 7 {
		a, err := c.AttachOnce(t.Context(), "a", "p", attachRead)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
	}
	if _, err := c.AttachOnce(t.Context(), "a", "p", attachRead); !isCode(err, apitypes.CodeTooManyConnections) {
		t.Errorf("an eighth relay: %v", err)
	}
	c.Close() // kept connections
	// A connection that has not asked yet may be cut for another one, as long as the server has
	// not seen which are closed.
	get := func(path, token string) *http.Response {
		for {
			req, _ := http.NewRequest("GET", f.base+path, nil)
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := f.http.Do(req)
			if err == nil {
				return resp
			}
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}
	var open []*http.Response
	for range 7 {
		resp := get("/v1/events", viewerToken)
		if resp.StatusCode != 200 {
			t.Fatal(resp)
		}
		open = append(open, resp)
	}
	eighth := get("/v1/status", viewerToken)
	text, err := io.ReadAll(eighth.Body)
	eighth.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	if p := checkProblem(t, eighth, text); p.Code != apitypes.CodeTooManyConnections {
		t.Errorf("an eighth request: %+v", p)
	}
	other := get("/v1/status", strangerToken)
	other.Body.Close()
	if other.StatusCode != 200 {
		t.Errorf("another tenant: %v", other)
	}
	for _, resp := range open {
		resp.Body.Close()
	}
	for { // until the server has seen that they are gone
		resp := get("/v1/status", viewerToken)
		resp.Body.Close()
		if resp.StatusCode == 200 {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal("the places are not given back")
		}
		time.Sleep(time.Millisecond)
	}
}
