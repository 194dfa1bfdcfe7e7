package ui

import (
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
)

// Somebody pauses a session, after a question, and resumes it; the page shows that it is paused, whoever did it, with
// its use and with the end that counts meanwhile. A viewer only sees it.
func TestPause(t *testing.T) {
	t.Parallel()
	w := begin(t)
	ctx := t.Context()
	second := spec.Duration(1e9)
	for id, wishes := range map[string]apitypes.LiveWishes{
		"a": {IdleTTL: ptr(600 * second), CPUs: ptr(1.0)},
		"b": {IdleTTL: ptr(600 * second), MaxLifetime: ptr(3600 * second), AutoResume: ptr(true)},
	} {
		if _, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: id, SessionSpec: apitypes.SessionSpec{LiveWishes: wishes}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.api.Start(ctx, "a", apitypes.ProcessRequest{ID: "busy", Shell: "while :; do :; done"}); err != nil {
		t.Fatal(err)
	}
	const processors = `[...document.querySelectorAll(".meter")].find(m => m.textContent.startsWith("Processors"))?.textContent`
	tab := w.page("#/s/acme/a", 1000, 700)
	w.signIn(tab, operatorToken)
	w.awaitText(tab, ".bar .badge", "running")

	// Not without the second button.
	w.click(tab, ".bar button", "Pause")
	w.awaitText(tab, "dialog[open]", "(1 process, 0 commands)")
	w.click(tab, "dialog button", "Cancel")
	if s, err := w.api.Session(ctx, "a"); err != nil || s.PausedAt != nil {
		t.Errorf("%+v, %v", s, err)
	}
	w.click(tab, ".bar button", "Pause")
	w.click(tab, "dialog button", "Pause")
	w.awaitText(tab, "[role=status] .message", "Session a is paused.")
	w.awaitText(tab, ".bar .badge", "paused")
	w.awaitText(tab, "p[role=status]", "Paused since ")
	w.awaitText(tab, ".bar", "Ends in not while it is paused")
	if s, err := w.api.Session(ctx, "a"); err != nil || s.PausedAt == nil {
		t.Errorf("%+v, %v", s, err)
	}
	w.Await(tab, `document.activeElement?.textContent === "Resume" ? "yes" : ""`) // the focus is where it was
	w.Await(tab, `/Processors0 of 1$/.test(`+processors+`) ? "yes" : ""`)
	w.awaitText(tab, ".meter", "iB of ") // memory is still held, and shown
	w.click(tab, ".tabs a", "Files")
	w.awaitText(tab, "main [role=alert]", "is paused")

	// The list has the same state, and another button.
	w.Await(tab, `(location.hash = "#/sessions", document.querySelectorAll("td a").length === 2 ? "yes" : "")`)
	w.Await(tab, `(() => { const e = document.querySelector("input[type=search]"); e.value = "paused"; e.dispatchEvent(new Event("input", {bubbles: true})); return "yes" })()`)
	w.Await(tab, `[...document.querySelectorAll("td a")].map(a => a.textContent).join() === "a" ? "yes" : ""`)
	w.awaitText(tab, "td", "not while it is paused")
	w.Await(tab, `(() => { const [l] = document.querySelectorAll(".controls select"); l.value = "zh"; l.dispatchEvent(new Event("change", {bubbles: true})); return "yes" })()`)
	w.awaitText(tab, "td .badge", "已暂停")
	w.click(tab, "td button", "恢复会话 a")
	w.awaitText(tab, ".message", "会话 a 已恢复运行。")
	if s, err := w.api.Session(ctx, "a"); err != nil || s.PausedAt != nil {
		t.Errorf("%+v, %v", s, err)
	}
	w.Await(tab, `(() => { const [l] = document.querySelectorAll(".controls select"); l.value = "en"; l.dispatchEvent(new Event("change", {bubbles: true})); return "yes" })()`)
	w.awaitText(tab, "main", "No session matches the filter.")

	// A pause that the page has not asked for; max_lifetime goes on.
	w.Await(tab, `(location.hash = "#/s/acme/b", "yes")`)
	w.awaitText(tab, ".bar .badge", "running")
	if _, err := w.api.Pause(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	w.awaitText(tab, ".bar .badge", "paused")
	w.awaitText(tab, "p[role=status]", "The next use resumes it.")
	w.Await(tab, `/^(59|1:00):\d\d/.test(document.querySelector(".bar time")?.textContent) ? "yes" : ""`)

	w.click(tab, "button", "Sign out")
	w.signIn(tab, viewerToken)
	w.awaitText(tab, ".bar .badge", "paused")
	if got, err := w.Eval(tab, `"" + document.querySelectorAll("main button").length`); err != nil || got != "0" {
		t.Errorf("a viewer has %s buttons, %v", got, err)
	}
	if got := w.Await(tab, `fetch("/v1/sessions/b/resume", {method: "POST", headers: {"X-Boxd-Page": localStorage.getItem("boxd-page")}}).then(r => "" + r.status)`); got != "403" {
		t.Errorf("a viewer resumes the session: %s", got)
	}
}
