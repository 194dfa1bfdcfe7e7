package api

import (
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
	var open []*http.Response
	for range 7 {
		req, _ := http.NewRequest("GET", f.base+"/v1/events", nil)
		req.Header.Set("Authorization", "Bearer "+viewerToken)
		resp, err := f.http.Do(req)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v, %v", resp, err)
		}
		open = append(open, resp)
	}
	if p := f.problem("GET", "/v1/status", viewerToken, ""); p.Code != apitypes.CodeTooManyConnections {
		t.Errorf("an eighth request: %+v", p)
	}
	if _, err := f.as(strangerToken, "").Status(t.Context()); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	for _, resp := range open {
		resp.Body.Close()
	}
	for { // until the server has seen that they are gone; a new connection may have no place until then
		req, _ := http.NewRequest("GET", f.base+"/v1/status", nil)
		req.Header.Set("Authorization", "Bearer "+viewerToken)
		resp, err := f.http.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		if err == nil && resp.StatusCode == 200 {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal("the places are not given back")
		}
		time.Sleep(time.Millisecond)
	}
}
