package ui

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/testutil"
)

// Pages of other origins, even of another port of the same host, to which browsers send the cookie, cannot act with
// it, read with it, or show the operator's page in a frame. Their server gets the cookie, and can do nothing with it.
func TestOtherPages(t *testing.T) {
	if !testutil.Full() {
		t.Skip("takes long: only make full has it; package api has the daemon's part of it")
	}
	w := begin(t)
	ctx := t.Context()
	if _, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.api.Start(ctx, "a", apitypes.ProcessRequest{ID: "p", Argv: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stolen := make(chan string, 10)
	other := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			stolen <- r.Header.Get("Cookie")
		}
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprint(rw, "<title>other</title>")
	})}
	served := make(chan error, 1)
	go func() { served <- other.Serve(l) }()
	defer func() {
		other.Shutdown(context.Background())
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()

	page := w.page("", 1000, 700)
	w.signIn(page, operatorToken)
	w.awaitText(page, "td a", "a")
	secret := w.Await(page, `localStorage.getItem("boxd-page")`)
	if got, err := w.Eval(page, `document.cookie`); err != nil || got != "" {
		t.Errorf("scripts see the cookie %q, %v", got, err)
	}

	evil := w.Open("http://" + l.Addr().String() + "/")
	w.Await(evil, `document.title`)
	cookie := <-stolen
	if !strings.Contains(cookie, "boxd-page-") {
		t.Errorf("the browser sends %q to another port: this test is blind", cookie)
	}
	for name, attack := range map[string]string{
		"list":              `fetch(B + "/v1/sessions", {credentials: "include"}).then(r => "read " + r.status, e => "failed")`,
		"list with secret":  `fetch(B + "/v1/sessions", {credentials: "include", headers: {"X-Boxd-Page": S}}).then(r => "read " + r.status, e => "failed")`,
		"stop":              `fetch(B + "/v1/sessions/a", {method: "DELETE", credentials: "include", headers: {"X-Boxd-Page": S}}).then(r => "done " + r.status, e => "failed")`,
		"post a form":       `fetch(B + "/v1/sessions", {method: "POST", mode: "no-cors", credentials: "include", body: '{"id": "evil"}'}).then(() => "failed", () => "failed")`,
		"sign in":           `fetch(B + "/v1/login", {method: "POST", mode: "no-cors", credentials: "include", body: '{"token": "x"}'}).then(() => "failed", () => "failed")`,
		"attach":            `new Promise(done => { const s = new WebSocket(B.replace("http", "ws") + "/v1/sessions/a/processes/p/relay?mode=write", ["boxd"]); s.onopen = () => done("open"); s.onerror = () => done("failed") })`,
		"attach, by secret": `new Promise(done => { const s = new WebSocket(B.replace("http", "ws") + "/v1/sessions/a/processes/p/relay?mode=write", ["boxd", "boxd.page." + S]); s.onopen = () => done("open"); s.onerror = () => done("failed") })`,
		"frame":             `new Promise(done => { const f = document.createElement("iframe"); f.onload = () => { try { done(f.contentDocument?.title === "boxd" ? "framed" : "failed") } catch { done(f.contentWindow.length === 0 ? "failed" : "framed") } }; f.src = B + "/ui"; document.body.append(f) })`,
		"opener":            `new Promise(done => { const o = window.open(B + "/ui"); setTimeout(() => { try { done(o.document.title === "boxd" ? "read" : "failed") } catch { done("failed") } }, 300) })`,
	} {
		got, err := w.Eval(evil, `(() => { const B = `+quote(w.base)+`, S = `+quote(secret)+`; return `+attack+` })()`)
		if err != nil || got != "failed" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	// What its server got is worth nothing, whatever it says of itself.
	for _, header := range []http.Header{{}, {"Sec-Fetch-Site": {"same-origin"}}, {"Origin": {w.base}}, {"X-Boxd-Page": {"guess"}}} {
		for _, c := range []struct{ method, path string }{{"GET", "/v1/sessions"}, {"DELETE", "/v1/sessions/a"}, {"GET", "/v1/login"}} {
			req, err := http.NewRequestWithContext(ctx, c.method, w.base+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = header.Clone()
			req.Header.Set("Cookie", cookie)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s %s with a stolen cookie and %v: %d", c.method, c.path, header, resp.StatusCode)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if list, err := w.api.Sessions(ctx); err != nil || len(list) != 1 || list[0].ID != "a" {
		t.Errorf("%+v, %v", list, err)
	}
	w.awaitText(page, "td a", "a") // and the page still works
}

// What a process writes is text, however it looks, and all of it is shown, once and in order, although the daemon is
// killed meanwhile.
func TestLog(t *testing.T) {
	if !testutil.Full() {
		t.Skip("takes long: only make full has it")
	}
	w := begin(t)
	ctx := t.Context()
	if _, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	const lines = 20_000
	script := `printf '` + hostile + `\033]52;c;c3RvbGVu\007\033]8;;javascript:window.pwned=1\007link\033]8;;\007\033[31mred\033[0m\n'; until [ -e go ]; do sleep 0.05; done; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo $i; [ $((i % 100)) -gt 0 ] || sleep 0.01; done`
	if _, err := w.api.Start(ctx, "a", apitypes.ProcessRequest{ID: "p", Shell: script}); err != nil {
		t.Fatal(err)
	}
	tab := w.page("#/s/acme/a/processes/p", 1000, 700)
	w.signIn(tab, operatorToken)
	w.awaitText(tab, ".log", hostile+"linkred")
	w.noScript(tab)
	if _, err := w.api.Exec(ctx, "a", apitypes.ExecRequest{Shell: "touch go"}); err != nil {
		t.Fatal(err)
	}
	w.Await(tab, `document.querySelector(".log").textContent.length > 20000 ? "yes" : ""`)
	for range 2 {
		if err := w.daemon.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := w.daemon.Start(); err != nil {
			t.Fatal(err)
		}
	}
	got := w.Await(tab, `(() => { const s = document.querySelector(".log").textContent; return s.endsWith("\n20000\n") ? s : "" })()`)
	var want strings.Builder
	want.WriteString(hostile + "linkred\n")
	for i := range lines {
		fmt.Fprintf(&want, "%d\n", i+1)
	}
	if got != want.String() {
		t.Errorf("%d bytes, want %d", len(got), want.Len())
	}
	w.awaitText(tab, "h2", "exited (0)")
	w.noScript(tab)
}
