package ui

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/testutil"
)

// The status has, for callers of all tenants, how it goes with each webhook, and of its URL the host only; and the
// doctor's checks, as far as the daemon can make them under its confinement. It says which ones it cannot.
// However often it is asked for, an examination is made once in ten seconds.
func TestStatus(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	t.Cleanup(receiver.Close)
	dir := testutil.ReachableDir(t, "")
	file, secret := filepath.Join(dir, "boxd.yaml"), filepath.Join(dir, "secret")
	config := fmt.Sprintf("webhooks:\n  audit: {url: %q, secret: {file: %q}}\n  dead: {url: \"http://127.0.0.1:1/hidden?key=hidden\", secret: {file: %q}}\n", receiver.URL+"/hidden?key=hidden", secret, secret)
	for name, text := range map[string]string{file: config, secret: "whsec_" + strings.Repeat("A", 32) + "\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil { // for the daemon's user
			t.Fatal(err)
		}
	}
	w := begin(t, "--config", file)
	ctx := t.Context()
	if _, err := w.api.Start(ctx, "a", apitypes.ProcessRequest{ID: "p", Argv: []string{"true"}, Session: &apitypes.SessionSpec{}}); err != nil {
		t.Fatal(err)
	}
	tab := w.page("#/status", 1280, 1200)
	w.signIn(tab, adminToken)
	const outcome = `[...document.querySelectorAll("section[aria-labelledby=doctor-title] tbody tr")].find(r => r.cells[0].textContent === %s)?.cells[1].textContent`
	for _, name := range []string{"box", "kernel", "disk space", "kernel.pid_max"} {
		if got := w.Await(tab, fmt.Sprintf(outcome, quote(name))); got == "unknown" || got == "failed" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := w.Await(tab, fmt.Sprintf(outcome, quote("box"))); got != "ok" {
		t.Errorf("box: %s", got)
	}
	w.awaitText(tab, "section[aria-labelledby=doctor-title]", "“boxd doctor” on the host also checks: privilege, cgroups, memory limit,")
	const row = `(() => { const r = [...document.querySelectorAll("section[aria-labelledby=webhooks-title] tbody tr")].find(r => r.innerText.startsWith(%s)); return r && /%s/.test([...r.cells].map(c => c.innerText).join(" ").replaceAll("\n", " ")) ? "yes" : "" })()`
	w.Await(tab, fmt.Sprintf(row, quote("audit"), `127\.0\.0\.1:\d+ works 1 0 0 0$`))
	w.Await(tab, fmt.Sprintf(row, quote("dead"), `127\.0\.0\.1:1 fails Last attempt failed: .*refused 0 1 oldest: .* [1-9]\d* 0$`))
	if got, err := w.Eval(tab, `document.documentElement.outerHTML.includes("hidden?") || document.querySelector("main").innerText.includes("hidden") ? "yes" : ""`); err != nil || got != "" {
		t.Errorf("the page has more of a URL than its host: %v", err)
	}
	w.look(tab, "host-desktop-light-en")
	w.show(tab, "dark", "zh", 390, 844)
	w.awaitText(tab, "#doctor-title", "诊断")
	w.look(tab, "host-phone-dark-zh")
	w.show(tab, "light", "en", 1280, 1200)

	var asking sync.WaitGroup
	made := make(chan time.Time, 30)
	for range cap(made) {
		asking.Go(func() {
			d, err := w.api.Doctor(ctx)
			if err != nil || !d.OK || len(d.OnHost) == 0 {
				t.Errorf("%+v, %v", d, err)
			}
			made <- d.At
		})
	}
	asking.Wait()
	times := map[time.Time]bool{}
	for range cap(made) {
		times[<-made] = true
	}
	if len(times) > 2 { // the ten seconds of the page's may end meanwhile
		t.Errorf("%d examinations of %d requests", len(times), cap(made))
	}
	w.click(tab, "button", "Check again")
	w.awaitText(tab, "section[aria-labelledby=doctor-title] [role=status]", "as of ")

	for who, token := range map[string]string{"a viewer": viewerToken, "the operator of a tenant": operatorToken} {
		w.click(tab, "button", "Sign out")
		w.signIn(tab, token)
		w.awaitText(tab, ".parts", "Engine works")
		if got, err := w.Eval(tab, `[...document.querySelectorAll("h2")].filter(h => ["doctor-title", "webhooks-title"].includes(h.id)).map(h => h.innerText).join()`); err != nil || got != "" {
			t.Errorf("%s has %s: %v", who, got, err)
		}
		if got := w.Await(tab, `fetch("/v1/doctor", {headers: {"X-Boxd-Page": localStorage.getItem("boxd-page")}}).then(r => "" + r.status)`); got != "403" {
			t.Errorf("%s asks the doctor: %s", who, got)
		}
	}
}
