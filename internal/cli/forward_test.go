package cli

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

// boxd forward ends when an event says that its session is gone, or when the session is not there after
// a gap in the events.
func TestForwardEndsWithSession(t *testing.T) {
	event := func(tenant, session, kind string) string {
		return fmt.Sprintf("event: session\ndata: {\"type\":%q,\"tenant\":%q,\"session\":%q}\n\n", kind, tenant, session)
	}
	for name, c := range map[string]struct {
		events []string // of one subscription each; a further one has the last
		gone   int64    // from this question about the session on, it is not found
		want   string
	}{
		"removed":     {[]string{event("b", "lab", "removed") + event("a", "other", "removed") + event("a", "lab", "state") + event("a", "lab", "removed")}, 9, "it was removed"},
		"expired":     {[]string{event("a", "lab", "expired")}, 9, "it expired"},
		"next daemon": {[]string{"", event("a", "lab", "removed")}, 9, "it was removed"},
		"missed":      {[]string{"event: missed\ndata: {\"missed\":3}\n\n"}, 3, "it was removed or expired"},
		"in between":  {[]string{event("b", "lab", "removed")}, 2, "it was removed or expired"},
	} {
		var asked, subscribed atomic.Int64
		d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
			if r.what != "GET /v1/events" {
				if asked.Add(1) >= c.gone {
					refuse(w, 404, apitypes.CodeSessionNotFound, "not found")
					return
				}
				send(w, apitypes.Session{ID: "lab", Tenant: "a"})
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, c.events[min(int(subscribed.Add(1)), len(c.events))-1])
		})
		status, v := d.call("forward", "lab", ":8000")
		if want := "boxd: session \"lab\" has ended: " + c.want + "\n"; status != 125 || v.stderr.String() != want {
			t.Errorf("%s: status %d, %q, want %q", name, status, v.stderr.String(), want)
		}
	}
}

func TestForwardNeedsPort(t *testing.T) {
	d := newFakeDaemon(t, func(seen, http.ResponseWriter) { t.Error("the daemon was asked") })
	if status, v := d.call("forward", "lab"); status != 125 || !strings.HasPrefix(v.stderr.String(), "boxd: [[HOST:]LOCAL:]PORT is missing: boxd forward SESSION ") {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
}

func TestParseForwarding(t *testing.T) {
	for text, want := range map[string]forwarding{
		"8080":             {"127.0.0.1:8080", 8080},
		":8080":            {"127.0.0.1:0", 8080},
		"0:8080":           {"127.0.0.1:0", 8080},
		"8080:80":          {"127.0.0.1:8080", 80},
		"127.0.0.2:81:80":  {"127.0.0.2:81", 80},
		"0.0.0.0:81:80":    {"0.0.0.0:81", 80},
		"localhost:81:80":  {"localhost:81", 80},
		"[::1]:81:80":      {"[::1]:81", 80},
		"[fe80::1%lo]:0:1": {"[fe80::1%lo]:0", 1},
		"65535:65535":      {"127.0.0.1:65535", 65535},
	} {
		if got, err := parseForwarding(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":", "0", "80:", "80:0", "80:65536", "65536:80", "-1:80", "80:+1", "::80:80", "::1:80:80", ":80:80", "[::1]:80", "a:80", "80:a", "http:80", "80:80/tcp", "1:2:3:4", " 80", "3128", "80:1080"} {
		if got, err := parseForwarding(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestLinkDays(t *testing.T) {
	for ttl, want := range map[string]string{"7d": `"ttl":604800`, "30m": `"ttl":1800`, "168h": `"ttl":604800`} {
		d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) { send(w, apitypes.Link{URL: "https://x.example.org"}) })
		if status, v := d.call("link", "lab", "80", "--ttl", ttl); status != 0 || !strings.Contains(d.requests[0].body, want) {
			t.Errorf("%s: status %d, %q, %+v", ttl, status, v.stderr.String(), d.requests)
		}
	}
}
