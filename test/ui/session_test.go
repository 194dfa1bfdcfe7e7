package ui

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
)

// hostile is a name that would run a script if it became markup.
const hostile = `<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>`

// noScript fails if something hostile has run.
func (w *world) noScript(tab string) {
	w.t.Helper()
	if got, err := w.Eval(tab, `String(window.pwned ?? document.querySelector("main img, main script") ?? "")`); err != nil || got != "" {
		w.t.Errorf("what a session says has become a part of the page: %s, %v", got, err)
	}
}

// Files go up and come down as they are, whatever their names are; removing one takes a confirmation.
func TestFiles(t *testing.T) {
	w := begin(t)
	ctx := t.Context()
	if _, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{Name: hostile, Labels: map[string]string{"note": hostile}}}); err != nil {
		t.Fatal(err)
	}
	down := t.TempDir()
	w.Must("", "Browser.setDownloadBehavior", map[string]any{"behavior": "allow", "downloadPath": down, "eventsEnabled": true}, nil)
	up := t.TempDir()
	content := bytes.Repeat([]byte("0123456789abcde\n"), 3<<20/16)
	names := []string{"plain.bin", strings.ReplaceAll(hostile, "/", "")}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(up, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tab := w.page("#/s/acme/a/files", 1200, 900)
	w.signIn(tab, operatorToken)
	w.awaitText(tab, "main", "The directory is empty.")
	w.noScript(tab)
	var input struct{ Result struct{ ObjectID string } }
	w.Must(tab, "Runtime.evaluate", map[string]any{"expression": `document.querySelector("input[type=file]")`}, &input)
	w.Must(tab, "DOM.setFileInputFiles", map[string]any{"files": []string{filepath.Join(up, names[0]), filepath.Join(up, names[1])}, "objectId": input.Result.ObjectID}, nil)
	w.Await(tab, `document.querySelectorAll("td button").length === 4 ? "yes" : ""`)
	w.awaitText(tab, ".transfer", "3 MiB")
	w.noScript(tab)
	for i, name := range names {
		if got, err := w.api.ReadFile(ctx, "a", name, 0, 0); err != nil {
			t.Error(err)
		} else {
			back := new(bytes.Buffer)
			if _, err := back.ReadFrom(got); err != nil || !bytes.Equal(back.Bytes(), content) {
				t.Errorf("%q in the box: %d bytes, %v", name, back.Len(), err)
			}
			got.Close()
		}
		w.click(tab, "td button", "Download "+name)
		w.awaitDownload(i+1, down, content)
	}
	w.click(tab, "td button", "Remove "+names[1])
	w.awaitText(tab, "dialog[open]", "cannot be undone")
	w.noScript(tab)
	w.Press(tab, "Escape", "")
	w.Await(tab, `document.querySelector("dialog[open]") ? "" : "yes"`)
	w.click(tab, "td button", "Remove "+names[1])
	w.click(tab, "dialog button", "Remove")
	w.Await(tab, `document.querySelectorAll("td button").length === 2 ? "yes" : ""`)
	// A directory that is made, entered by its link, and back.
	w.click(tab, "button", "New directory")
	w.fill(tab, "name", "50% & more?#")
	w.click(tab, "dialog button", "Create")
	w.click(tab, "td a", "50% & more?#/")
	w.awaitText(tab, "main", "The directory is empty.")
	w.click(tab, ".path a", "workspace")
	w.awaitText(tab, "td", "plain.bin")
	// What the daemon refuses is said.
	w.click(tab, "button", "New directory")
	w.fill(tab, "name", "50% & more?#")
	w.click(tab, "dialog button", "Create")
	w.awaitText(tab, "dialog .error", "exists")
}

// awaitDownload waits until the browser has n files in dir, of which the newest has this content.
func (w *world) awaitDownload(n int, dir string, content []byte) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		matches := 0
		entries, err := os.ReadDir(dir)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, e := range entries {
			if got, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil && bytes.Equal(got, content) {
				matches++
			}
		}
		if matches == n {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%d downloads of %d: %v", matches, n, entries)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Several people look at one terminal, one of them writes, and another takes over. A viewer has no button that the
// daemon would refuse, and is refused all the same.
func TestViewers(t *testing.T) {
	w := begin(t)
	ctx := t.Context()
	if _, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.api.Start(ctx, "a", apitypes.ProcessRequest{ID: "sh", Argv: []string{"sh"}, TTY: &apitypes.WindowSize{Rows: 24, Cols: 80}, Env: map[string]string{"PS1": "% "}}); err != nil {
		t.Fatal(err)
	}
	const place = "#/s/acme/a/processes/sh"
	first := w.page(place, 1000, 700)
	w.signIn(first, operatorToken)
	w.awaitText(first, ".terminal .bar", "you write")
	w.Await(first, `document.activeElement?.className.includes("xterm") ? "yes" : ""`)
	w.Await(first, rows+`.startsWith("%") ? "yes" : ""`) // what was there before is shown: input counts from now on
	w.Type(first, "echo one $((20+3))\n")
	w.Await(first, rows+`.includes("one 23") ? "yes" : ""`)

	second := w.page(place, 1000, 700) // the same browser: signed in already
	w.awaitText(second, ".terminal .bar", "you watch")
	w.Await(second, rows+`.includes("one 23") ? "yes" : ""`)
	w.Await(second, `(document.querySelector(".xterm textarea").focus(), "yes")`)
	w.Type(second, "echo never\n")
	w.click(second, ".terminal button", "Take over")
	w.awaitText(second, ".terminal .bar", "you write")
	w.awaitText(first, ".terminal .bar", "you watch")
	w.Await(second, `(document.querySelector(".xterm textarea").focus(), "yes")`)
	w.Type(second, "echo two $((20+4))\n")
	for _, tab := range []string{first, second} {
		w.Must(tab, "Page.bringToFront", nil, nil) // what is behind is not drawn
		got := w.Await(tab, `(() => { const r = `+rows+`; return r.includes("two 24") ? r : "" })()`)
		if strings.Contains(got, "never") {
			t.Errorf("somebody who watches has written:\n%s", got)
		}
	}
	// The keyboard is not caught in the terminal.
	w.Press(second, "F6", "")
	w.Await(second, `document.activeElement?.textContent === "To the terminal" ? "yes" : ""`)

	w.Must(first, "Page.bringToFront", nil, nil)
	w.click(first, "button", "Sign out")
	w.signIn(first, viewerToken)
	w.Await(first, `(location.hash = "#/sessions", document.querySelector("td a") ? "yes" : "")`)
	for _, view := range []string{"#/sessions", "#/s/acme/a/overview", "#/s/acme/a/processes", "#/s/acme/a/files", "#/s/acme/a/ports", place} {
		w.Await(first, fmt.Sprintf(`(location.hash = %s, document.querySelector("main h1")?.textContent ? "yes" : "")`, quote(view)))
		w.Await(first, `document.querySelector("main .dim")?.textContent !== "Loading…" ? "yes" : ""`)
		got, err := w.Eval(first, `[...document.querySelectorAll("main button")].map(b => b.textContent).filter(s => !["Reload", "Download", "To the terminal"].includes(s)).join()`)
		if err != nil || got != "" {
			t.Errorf("%s: a viewer has the buttons %s, %v", view, got, err)
		}
	}
	w.awaitText(first, ".terminal .bar", "you watch")
	if got := w.Await(first, `fetch("/v1/sessions/a", {method: "DELETE", headers: {"X-Boxd-Page": localStorage.getItem("boxd-page")}}).then(r => "" + r.status)`); got != "403" {
		t.Errorf("a viewer stops the session: %s", got)
	}
	if got := w.Await(first, rows+`.includes("two 24") ? "yes" : ""`); got != "yes" {
		t.Error(got)
	}
}

// Work goes on where it was when the login ends, when the daemon answers that there were too many requests, and when
// somebody else removes the session. To stop a session takes a confirmation.
func TestInterruptions(t *testing.T) {
	w := begin(t)
	ctx := t.Context()
	for _, id := range []string{"a", "b"} {
		if _, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	tab := w.page("#/s/acme/a/processes", 1000, 700)
	w.signIn(tab, operatorToken)
	w.click(tab, "button", "New terminal")
	w.awaitText(tab, ".terminal .bar", "you write")
	w.Await(tab, `document.activeElement?.className.includes("xterm") ? "yes" : ""`)
	w.Await(tab, rows+`.includes("root@") ? "yes" : ""`) // what was there before is shown: input counts from now on
	w.Type(tab, "PS1='$ '\n")
	// The login ends: the cookie is gone, and the daemon is restarted under the terminal.
	w.Must(tab, "Network.clearBrowserCookies", nil, nil)
	if err := w.daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	w.awaitText(tab, "dialog[open]", "Sign in")
	w.signIn(tab, operatorToken)
	w.Await(tab, `document.querySelector("dialog[open]") ? "" : "yes"`)
	w.awaitText(tab, ".terminal .bar", "you write")
	w.Await(tab, `(document.querySelector(".xterm textarea").focus(), "yes")`)
	w.Type(tab, "echo again $((40+2))\n")
	w.Await(tab, rows+`.includes("again 42") ? "yes" : ""`)

	// The escapes of a program do nothing outside of its terminal: the title, the clipboard (OSC 52), a link (OSC 8).
	w.Type(tab, `printf '\033]0;stolen\007\033]52;c;c3RvbGVu\007\033]8;;javascript:window.pwned=1\007click me\033]8;;\007 end\n'`+"\n")
	w.Await(tab, rows+`.includes("click me end") ? "yes" : ""`)
	w.noScript(tab)
	if got := w.Await(tab, `document.title`); got != "a · boxd" {
		t.Errorf("title %q", got)
	}
	if got := w.Await(tab, `navigator.clipboard.readText().then(s => "clipboard: " + s, e => "no clipboard: " + e.name)`); strings.Contains(got, "stolen") {
		t.Errorf("%s", got)
	}
	point := w.Await(tab, `(() => { const r = [...document.querySelectorAll(".xterm-rows > div")].find(r => r.textContent.startsWith("click")).getBoundingClientRect(); return (r.left + 20) + " " + (r.top + r.height / 2) })()`)
	var x, y float64
	if _, err := fmt.Sscan(point, &x, &y); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"mouseMoved", "mousePressed", "mouseReleased"} {
		w.Must(tab, "Input.dispatchMouseEvent", map[string]any{"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}, nil)
	}
	w.noScript(tab)

	// Stopping: not without the second button.
	w.click(tab, ".bar button", "Stop")
	w.awaitText(tab, "dialog[open]", "cannot be undone")
	w.click(tab, "dialog button", "Cancel")
	if s, err := w.api.Session(ctx, "a"); err != nil || s.State != "running" {
		t.Errorf("%+v, %v", s, err)
	}
	w.click(tab, ".bar button", "Stop")
	w.click(tab, "dialog button", "Stop")
	w.awaitText(tab, ".message", "Session a is stopped.")
	w.Await(tab, `location.hash === "#/sessions" && [...document.querySelectorAll("td a")].map(a => a.textContent).join() === "b" ? "yes" : ""`)
	// Somebody else removes the other one while it is open.
	w.click(tab, "td a", "b")
	w.awaitText(tab, "h1", "b")
	w.click(tab, "button", "Extend")
	w.fill(tab, "idle_ttl", "2h")
	w.click(tab, "dialog button", "Extend")
	w.awaitText(tab, ".message", "extended")
	if s, err := w.api.Session(ctx, "b"); err != nil || s.IdleTTL.D() != 2*time.Hour {
		t.Errorf("%+v, %v", s, err)
	}
	if err := w.api.Remove(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	w.awaitText(tab, ".error", "b")

	// A token with two requests per second: the page waits as it is told, and shows the list in the end.
	if _, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: "c"}); err != nil {
		t.Fatal(err)
	}
	w.click(tab, "button", "Sign out")
	w.signIn(tab, slowToken)
	for range 3 {
		w.Await(tab, `(location.hash = "#/status", "yes")`)
		w.awaitText(tab, "h1", "Status")
		w.Await(tab, `(location.hash = "#/sessions", "yes")`)
		w.awaitText(tab, "h1", "Sessions")
	}
	w.awaitText(tab, "td a", "c")
}
