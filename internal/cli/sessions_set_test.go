package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
)

// TestSessionsSet: what a flag names replaces that of the session, the rest stays, and one line says
// what the session has now.
func TestSessionsSet(t *testing.T) {
	own := spec.NetworkRules{Allow: []string{"a.example", "b.example"}, Deny: []string{"bad.example"}, Limits: spec.NetworkLimits{Connections: 4, Bytes: 1 << 20}}
	s := apitypes.Session{ID: "s", Network: true}
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		answer := s
		if strings.HasPrefix(r.what, "PATCH") {
			var u apitypes.SessionUpdate
			if err := json.Unmarshal([]byte(r.body), &u); err != nil {
				t.Error(err)
			}
			if answer.NetworkRules = u.NetworkRules; u.Network != nil {
				answer.Network = *u.Network
			}
		}
		send(w, answer)
	})
	for _, c := range []struct {
		args  string
		rules *spec.NetworkRules // of the session before
		sent  string
		says  string
	}{
		{"--network proxy", nil, `{"network":true}`, "s: network on, with the rules of its profile\n"},
		{"--network none", &own, `{"network":false}`, "s: network off\n"},
		{"--network proxy --allow x.example --allow y.example:22", nil, `{"network_rules":{"allow":["x.example","y.example:22"]},"network":true}`, "s: network on; allow x.example, y.example:22\n"},
		{"--allow x.example", &own, `{"network_rules":{"allow":["x.example"],"deny":["bad.example"],"limits":{"connections":4,"bytes":1048576}}}`,
			"s: network on; allow x.example; deny bad.example; connections at most 4; bytes at most 1 MiB\n"},
		{"--deny x.example", &own, `{"network_rules":{"allow":["a.example","b.example"],"deny":["x.example"],"limits":{"connections":4,"bytes":1048576}}}`, "deny x.example;"},
		{"--net-limit connections=2,bandwidth=1M --net-limit idle=90", &own, `{"network_rules":{"allow":["a.example","b.example"],"deny":["bad.example"],"limits":{"connections":2,"bytes":1048576,"bandwidth":1048576,"idle":90}}}`,
			"connections at most 2; bytes at most 1 MiB; bandwidth at most 1 MiB; idle at most 1m30s\n"},
		{"--reset-rules", &own, `{"network_rules":{}}`, "s: network on, with the rules of its profile\n"},
		{"--reset-rules --deny x.example", &own, `{"network_rules":{"deny":["x.example"]}}`, "s: network on; deny x.example\n"},
		{"--deny x.example --json", nil, `{"network_rules":{"deny":["x.example"]}}`, `"network_rules":{"deny":["x.example"]}`},
		{"--deny x.example --format {{.id}}={{.network}}", nil, `{"network_rules":{"deny":["x.example"]}}`, "s=true\n"},
	} {
		d.requests, s.NetworkRules = nil, c.rules
		status, v := d.call(append([]string{"sessions", "set", "s"}, strings.Fields(c.args)...)...)
		out := v.stdout.String()
		if sent := d.requests[len(d.requests)-1]; status != 0 || sent != (seen{"PATCH /v1/sessions/s", c.sent}) || !strings.Contains(out, c.says) || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: status %d, %q, %q, sent %q, want %q and %q", c.args, status, out, v.stderr.String(), sent, c.sent, c.says)
		}
	}
}

// TestSessionsSetWithoutNetwork: rules need a network, which can be gone for good.
func TestSessionsSetWithoutNetwork(t *testing.T) {
	gone := `network true: session "s" is sensitive since 2026-01-02T03:04:05Z, for good: its network was given up`
	s := apitypes.Session{ID: "s", Sensitive: &apitypes.Sensitive{Since: time.Now(), Reason: "its network was given up"}}
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		if strings.Contains(r.body, `"network":true`) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(403)
			json.NewEncoder(w).Encode(apitypes.Problem{Status: 403, Code: apitypes.CodeDenied, Detail: gone, Field: "network"})
			return
		}
		send(w, s)
	})
	for _, c := range []struct {
		args           string
		status         int
		stdout, stderr string
	}{
		{"--network none", 0, "s: network off, for good\n", ""},
		{"--network proxy", 125, "", "boxd: --" + gone + "\n"},
		{"--network proxy --allow x.example", 125, "", "boxd: --" + gone + "\n"},
		{"--allow x.example", 125, "", "boxd: --allow, --deny, --net-limit, --reset-rules of session \"s\", which has no network: need --network proxy\n"},
	} {
		if status, v := d.call(append([]string{"sessions", "set", "s"}, strings.Fields(c.args)...)...); status != c.status || v.stdout.String() != c.stdout || v.stderr.String() != c.stderr {
			t.Errorf("%s: status %d, %q, %q", c.args, status, v.stdout.String(), v.stderr.String())
		}
	}
}

// TestSessionsSetKeepsPublished: a session without a network keeps its published ports, and the command
// says how to close them.
func TestSessionsSetKeepsPublished(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		send(w, apitypes.Session{ID: "s", Published: []apitypes.Published{{Port: 80, Host: 20000, Address: "127.0.0.1"}}})
	})
	want := "s: network off\ns: its published ports stay open; to close them for good: boxd sessions sensitive s\n"
	if status, v := d.call("sessions", "set", "s", "--network", "none"); status != 0 || v.stdout.String() != want {
		t.Errorf("status %d, %q, want %q", status, v.stdout.String(), want)
	}
}

// TestSessionsShowNetworkOff: a network that is off now is not called on.
func TestSessionsShowNetworkOff(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		send(w, apitypes.Session{ID: "s", Network: true, NetworkOff: "this daemon gives no box a network"})
	})
	if status, v := d.call("sessions", "show", "s"); status != 0 || !strings.Contains(strings.Join(strings.Fields(v.stdout.String()), " "), "network off: this daemon gives no box a network") {
		t.Errorf("status %d, %q", status, v.stdout.String())
	}
}
