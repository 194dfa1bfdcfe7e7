package api

import (
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// Only those who may act for all tenants see how deliveries go: they tell of all tenants.
func TestWebhookStates(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) {
		o.Webhooks = func() []apitypes.WebhookState {
			return []apitypes.WebhookState{{Name: "ci", Host: "ci.example:8443", Pending: 2, Bytes: 300, Delivered: 5, Failed: 7, Dropped: 1, Error: "refused"}}
		}
	})
	for token, want := range map[string]bool{adminToken: true, operatorToken: false, viewerToken: false, scraperToken: true} {
		if _, body := f.raw("GET", "/v1/status", token, ""); strings.Contains(string(body), `"webhooks":[{"name":"ci","host":"ci.example:8443","pending":2,"bytes":300,"delivered":5,"failed":7,"dropped":1,"error":"refused"}]`) != want {
			t.Errorf("%s: %s", token, body)
		}
	}
	_, body := f.raw("GET", "/metrics", scraperToken, "")
	for _, line := range []string{`boxd_webhook_pending{webhook="ci"} 2`, `boxd_webhook_pending_bytes{webhook="ci"} 300`, `boxd_webhook_delivered_total{webhook="ci"} 5`,
		`boxd_webhook_failed_total{webhook="ci"} 7`, `boxd_webhook_dropped_total{webhook="ci"} 1`} {
		if !strings.Contains(string(body), line+"\n") {
			t.Errorf("no metric %s", line)
		}
	}
}

func TestWebhookBody(t *testing.T) {
	at, code := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600)), 3
	end := session.Ending{Event: session.Event{Type: session.EventRemoved, Time: at, Tenant: "t", Session: "s", Box: "b", Request: "r", Labels: spec.Labels{"a": "b"}, Details: map[string]any{"reason": "x"}}}
	const head = `","timestamp":"2026-01-02T02:04:05.000000006Z","data":{"tenant":"t","session":"s","box":"b",`
	const tail = `"request":"r","labels":{"a":"b"},"details":{"reason":"x"}}}`
	if got, err := WebhookBody(end); err != nil || string(got) != `{"type":"removed`+head+tail {
		t.Errorf("%s, %v", got, err)
	}
	end.Type, end.Process = session.EventProcessExited, &session.ProcessView{Session: session.Key{Tenant: "t", ID: "s"}, ID: "p", State: session.ProcessExited, ExitCode: &code, StartedAt: at, EndedAt: at}
	got, err := WebhookBody(end)
	if text := string(got); err != nil || !strings.HasPrefix(text, `{"type":"process-exited`+head+`"process":{"id":"p","session":"s","state":"exited",`) || !strings.Contains(text, `"exit_code":3`) || !strings.HasSuffix(text, tail) {
		t.Errorf("%s, %v", got, err)
	}
}
