package ui

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
)

// The page shows what the proxy of a box decides, by which rule and why, without a reload. A rule that an operator
// adds ends an open connection, and the page shows that, too.
func TestNetworkDecisions(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(rw, "hello")
		if r.URL.Path == "/hold" {
			rw.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	allowed := server.Listener.Addr().String()
	w := begin(t, config(t, fmt.Sprintf("network: proxy\nprofiles:\n  default: {network_rules: {public: false, allow: [%q]}}\n", allowed))...)
	ctx := t.Context()
	if _, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{LiveWishes: apitypes.LiveWishes{Network: new(true)}}}); err != nil {
		t.Fatal(err)
	}
	curl := func(url, want string) {
		t.Helper()
		r, err := w.api.Exec(ctx, "a", apitypes.ExecRequest{Shell: "curl -sS --noproxy '' -x http://127.0.0.1:3128 -o /dev/null -w '%{http_code}' " + url})
		if err != nil || string(r.Stdout) != want {
			t.Fatalf("%s: %+v, %v, want %s", url, r, err, want)
		}
	}
	tab := w.page("#/s/acme/a/network", 1200, 900)
	w.signIn(tab, operatorToken)
	w.awaitText(tab, "main", "The network leads out of the box")
	w.awaitText(tab, "main", "Nothing was refused.")
	w.Await(tab, `window.loaded = "once"`)

	curl("http://"+allowed, "200")
	curl("http://evil.example", "403")
	to, rule := regexp.QuoteMeta(allowed), regexp.QuoteMeta(`allow "`+allowed+`"`)
	w.awaitRow(tab, "Last connections", `\| `+to+` \| allowed \| `+rule+` \| ↓ [1-9].* ↑ [1-9].*s$`)
	w.awaitRow(tab, "Last connections", `\| evil\.example:80 \| refused \| default no rule allows it \|`)
	w.awaitRow(tab, "Refused", `^evil\.example:80 \| default \| 1$`)
	curl("http://evil.example", "403")
	w.awaitRow(tab, "Refused", `^evil\.example:80 \| default \| 2$`)

	// An operator denies what was allowed, while a connection is open.
	if _, err := w.api.Start(ctx, "a", apitypes.ProcessRequest{ID: "hold", Shell: "curl -sSN --noproxy '' -x http://127.0.0.1:3128 -o /dev/null http://" + allowed + "/hold"}); err != nil {
		t.Fatal(err)
	}
	w.awaitRow(tab, "Open connections", `\| `+to+` \| allowed \| `+rule)
	if _, err := w.api.Update(ctx, "a", apitypes.SessionUpdate{NetworkRules: &spec.NetworkRules{Deny: []string{allowed}}}); err != nil {
		t.Fatal(err)
	}
	w.awaitText(tab, "main", "There are none.")
	forbidden := regexp.QuoteMeta(`deny "` + allowed + `"`)
	w.awaitRow(tab, "Last connections", `\| `+to+` \| allowed \| `+rule+` .*`+forbidden+`.* \|`)
	curl("http://"+allowed, "403")
	w.awaitRow(tab, "Last connections", `\| `+to+` \| refused \| `+forbidden+` the rule `+forbidden+` forbids it \|`)
	w.awaitRow(tab, "Refused", `^`+to+` \| `+forbidden+` \| 1$`)
	w.awaitText(tab, "main", `The session's own rules: {"deny":["`+allowed+`"]`)
	if got, err := w.Eval(tab, `window.loaded`); err != nil || got != "once" {
		t.Errorf("the page was loaded again: %q, %v", got, err)
	}
}

// What listens in a box is on the page, with a link that shows it to whoever has it, until it is revoked: also by a
// page that has not made it.
func TestPorts(t *testing.T) {
	t.Parallel()
	previews := freeAddress(t)
	_, port, _ := strings.Cut(previews, ":")
	w := begin(t, config(t, fmt.Sprintf("preview: {url: \"http://preview.localhost:%s\", listen: %q}\n", port, previews))...)
	ctx := t.Context()
	if _, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	tab := w.page("#/s/acme/a/ports", 1200, 900)
	w.signIn(tab, operatorToken)
	w.awaitText(tab, "main", "Nothing listens")
	if _, err := w.api.Start(ctx, "a", apitypes.ProcessRequest{ID: "web", Shell: "echo '<h1>shown</h1>' > index.html; exec python3 -m http.server 8000", Ready: &apitypes.Ready{Port: 8000}, Wait: true}); err != nil {
		t.Fatal(err)
	}
	w.awaitRow(tab, "Ports", `^8000 \| tcp \| 0\.0\.0\.0 \| Make a link$`)
	link := func() string {
		w.click(tab, "td button", "Make a link to port 8000")
		w.awaitRow(tab, "Ports", `^8000 \| tcp \| 0\.0\.0\.0 \| Open, until `)
		return w.Await(tab, `document.querySelector("td a").href`)
	}
	first := link()
	preview := w.Open(first)
	w.awaitText(preview, "h1", "shown")
	w.click(tab, "button", "Revoke all links")
	w.awaitText(tab, ".message", "All links to the session are revoked.")
	w.awaitRow(tab, "Ports", `^8000 \| tcp \| 0\.0\.0\.0 \| Make a link$`)
	w.Must(preview, "Page.reload", nil, nil)
	w.Await(preview, `document.body && !document.body.innerText.includes("shown") && document.readyState === "complete" ? "yes" : ""`)
	// Go does not know, as browsers do, that names below localhost are this host.
	other := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, previews)
	}}}
	closed := func(link string) {
		t.Helper()
		resp, err := other.Get(link)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", link, resp.Status)
		}
	}
	closed(first)

	second := link()
	w.Must(tab, "Page.reload", nil, nil)
	w.click(tab, "button", "Revoke all links")
	w.awaitText(tab, ".message", "All links to the session are revoked.")
	closed(second)
}
