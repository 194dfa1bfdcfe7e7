package ui

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
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
	choose := func(files ...string) {
		var input struct{ Result struct{ ObjectID string } }
		w.Must(tab, "Runtime.evaluate", map[string]any{"expression": `document.querySelector("input[type=file]")`}, &input)
		for i, name := range files {
			files[i] = filepath.Join(up, name)
		}
		w.Must(tab, "DOM.setFileInputFiles", map[string]any{"files": files, "objectId": input.Result.ObjectID}, nil)
	}
	// On a slow line the page tells how much of each file is sent, while it is sent.
	slow := func(bytesPerSecond int) {
		w.Must(tab, "Network.emulateNetworkConditions", map[string]any{"offline": false, "latency": 0, "downloadThroughput": -1, "uploadThroughput": bytesPerSecond}, nil)
	}
	w.Must(tab, "Network.enable", nil, nil)
	slow(2 << 20)
	w.Await(tab, `(window.seen = [], new MutationObserver(() => {
		const p = document.querySelector(".transfer progress");
		if (p && p.value !== seen.at(-1)?.Value) seen.push({Name: p.ariaLabel, Value: p.value, Max: p.max, Text: p.parentElement.innerText.replaceAll("\u00a0", " ")});
	}).observe(document.querySelector("main"), {subtree: true, childList: true, attributes: true, characterData: true}), "yes")`)
	choose(slices.Clone(names)...)
	w.Await(tab, `document.querySelectorAll("td button").length === 4 ? "yes" : ""`)
	w.awaitText(tab, ".transfer", "3 MiB")
	w.noScript(tab)
	var seen []struct {
		Name, Text string
		Value, Max int
	}
	if err := json.Unmarshal([]byte(w.Await(tab, `JSON.stringify(seen)`)), &seen); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		last, between := 0, 0
		for _, s := range seen {
			if s.Name != name {
				continue
			}
			if percent := fmt.Sprintf(" %.0f %%", math.Round(float64(s.Value)/float64(s.Max)*100)); s.Max != len(content) || s.Value < last || !strings.Contains(s.Text, percent) {
				t.Errorf("progress after %d bytes: %+v", last, s)
			}
			last = s.Value
			if s.Value > 0 && s.Value < s.Max {
				between++
			}
		}
		if between < 3 {
			t.Errorf("the progress of %q is shown %d times: %+v", name, between, seen)
		}
	}
	// One that is stopped leaves nothing behind.
	if err := os.WriteFile(filepath.Join(up, "cut.bin"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	slow(256 << 10)
	choose("cut.bin")
	w.Await(tab, `document.querySelector(".transfer progress")?.value > 0 ? "yes" : ""`)
	w.click(tab, ".transfer button", "Cancel")
	w.awaitText(tab, ".transfer .error", "Cancelled.")
	slow(-1)
	if _, err := w.api.ReadFile(ctx, "a", "cut.bin", 0, 0); !client.IsCode(err, apitypes.CodeNoFile) {
		t.Errorf("an upload that was stopped: %v", err)
	}
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

// received returns the output of a terminal that has come to a tab, whose domain Network is enabled, so far (docs/relay.md).
func (w *world) received(tab string) (output []byte) {
	w.t.Helper()
	for _, e := range w.Events {
		if e.Tab != tab || e.Method != "Network.webSocketFrameReceived" {
			continue
		}
		var frame struct{ Response struct{ PayloadData []byte } } // the payload of a binary frame is base64
		if err := json.Unmarshal(e.Params, &frame); err != nil {
			w.t.Fatal(err)
		}
		const data, header = 2, 10
		if b := frame.Response.PayloadData; len(b) > header && b[0] == data {
			if at := binary.BigEndian.Uint64(b[2:]); at != uint64(len(output)) {
				w.t.Fatalf("output at %d comes after %d bytes", at, len(output))
			}
			output = append(output, b[header:]...)
		}
	}
	return output
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
	w.Must(first, "Network.enable", nil, nil)
	w.signIn(first, operatorToken)
	w.awaitText(first, ".terminal .bar", "you write")
	w.Await(first, `document.activeElement?.className.includes("xterm") ? "yes" : ""`)
	w.Await(first, rows+`.startsWith("%") ? "yes" : ""`) // what was there before is shown: input counts from now on
	w.Type(first, "echo one $((20+3))\n")
	w.Await(first, rows+`.includes("one 23") ? "yes" : ""`)

	// The program has the size of the window, also when that changes.
	sizes := [][2]int{}
	for _, width := range []int{1000, 1300} {
		before := w.Await(first, `"" + document.querySelectorAll(".xterm-rows > div").length`)
		if width != 1000 {
			w.Must(first, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}, nil)
			w.Await(first, `document.querySelectorAll(".xterm-rows > div").length > `+before+` ? "yes" : ""`)
		}
		w.Type(first, "clear; stty size; printf '%0400d\n' 0\n")
		var size [2]int
		got := w.Await(first, `(() => {
			const all = [...document.querySelectorAll(".xterm-rows > div")].map(r => r.textContent.trimEnd());
			const size = all.length + " " + Math.max(...all.filter(r => /^0+$/.test(r)).map(r => r.length));
			return all[0] === size ? size : "";
		})()`)
		if _, err := fmt.Sscan(got, &size[0], &size[1]); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, size)
	}
	if sizes[1][0] <= sizes[0][0] || sizes[1][1] <= sizes[0][1] {
		t.Errorf("a larger window does not have more rows and columns: %d", sizes)
	}
	w.Type(first, "echo one $((20+3))\n")

	second := w.page("#/sessions", 1300, 900) // the same browser: signed in already
	w.Must(second, "Network.enable", nil, nil)
	w.Await(second, `(location.hash = `+quote(place)+`, "yes")`)
	w.awaitText(second, ".terminal .bar", "you watch")
	w.Await(second, rows+`.includes("one 23") ? "yes" : ""`)
	w.Await(second, `(document.querySelector(".xterm textarea").focus(), "yes")`)
	w.Type(second, "echo never\n")
	w.click(second, ".terminal button", "Take over")
	w.awaitText(second, ".terminal .bar", "you write")
	w.awaitText(first, ".terminal .bar", "you watch")
	w.Await(second, `(document.querySelector(".xterm textarea").focus(), "yes")`)
	w.Type(second, "head -c 30000 /dev/urandom | base64; printf '\\342\\202\\254\\n'; echo two $((20+4))\n")
	screens := []string{}
	for _, tab := range []string{first, second} {
		w.Must(tab, "Page.bringToFront", nil, nil) // what is behind is not drawn
		got := w.Await(tab, `(() => { const r = `+rows+`; return r.endsWith("two 24\n%") ? r : "" })()`)
		if strings.Contains(got, "never") {
			t.Errorf("somebody who watches has written:\n%s", got)
		}
		screens = append(screens, got)
	}
	// Both have got the bytes of the log, each once, and show the same.
	logs, err := w.api.Logs(ctx, "a", "sh", client.LogOptions{Stream: "stdout"})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	written, err := io.ReadAll(logs)
	if err != nil || len(written) < 40_000 {
		t.Fatalf("%d bytes in the log, %v", len(written), err)
	}
	written, _, _ = bytes.Cut(written, []byte("two 24"))
	for _, tab := range []string{first, second} {
		if got, _, there := bytes.Cut(w.received(tab), []byte("two 24")); !there || !bytes.Equal(got, written) {
			t.Errorf("a viewer has got %d bytes, the log has %d", len(got), len(written))
		}
	}
	if screens[0] != screens[1] || !strings.Contains(screens[0], "\n€\n") {
		t.Errorf("one viewer sees\n%s\nthe other one\n%s", screens[0], screens[1])
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

// The mounts and volumes of a session are those of the API. A session that ends within a minute is amber, in the list
// and where it is open, and no other one is.
func TestOverview(t *testing.T) {
	t.Parallel()
	root := testutil.ReachableDir(t, "")
	w := begin(t, config(t, fmt.Sprintf("allowed_mount_roots: [%q]\n", root))...)
	ctx := t.Context()
	for _, name := range []string{"cache", "models"} {
		if _, err := w.api.CreateVolume(ctx, apitypes.VolumeRequest{Name: name, Size: 8 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: "hour", SessionSpec: apitypes.SessionSpec{LiveWishes: apitypes.LiveWishes{IdleTTL: ptr(spec.Duration(3600e9))}}}); err != nil {
		t.Fatal(err)
	}
	a, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{
		Mounts:     []spec.MountWish{{Source: root, Target: "/in", ReadOnly: true}, {Source: root, Target: "/out"}},
		Volumes:    []apitypes.SessionVolume{{Name: "cache", Target: "/cache"}, {Name: "models", Target: "/models", ReadOnly: true}},
		LiveWishes: apitypes.LiveWishes{IdleTTL: ptr(spec.Duration(66e9))},
	}})
	if err != nil {
		t.Fatal(err)
	}
	tab := w.page("#/sessions", 1200, 900)
	w.signIn(tab, operatorToken)
	w.awaitText(tab, "td a", "hour")
	// The rows as "a 1:02 COLOUR", all of them at once: a second later it can be another minute.
	const rows = `[...document.querySelectorAll("tbody tr")].map(r => {
		const e = r.querySelector("td[data-label='Ends in'] time");
		return [r.querySelector("a").innerText, e.lastChild.data, getComputedStyle(e).backgroundColor.replaceAll(" ", "")].join(" ");
	}).join("\n")`
	const amber, none = "rgb(253,236,200)", "rgba(0,0,0,0)"
	for crossed, late := false, time.Now().Add(2*patience); !crossed; {
		if time.Now().After(late) {
			t.Fatal("a session of 66 seconds does not reach its last minute")
		}
		for line := range strings.Lines(w.Await(tab, rows)) {
			var id, left, colour string
			if _, err := fmt.Sscan(line, &id, &left, &colour); err != nil {
				t.Fatal(err)
			}
			want := none
			if strings.HasPrefix(left, "0:") {
				want, crossed = amber, id == "a"
			}
			if colour != want {
				t.Fatalf("%s, want the colour %s", line, want)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.click(tab, "td a", "a")
	w.awaitText(tab, ".bar time", "Soon:")
	if got := w.Await(tab, `getComputedStyle(document.querySelector(".bar time")).backgroundColor.replaceAll(" ", "")`); got != amber {
		t.Errorf("the colour is %s where the session is open, want %s", got, amber)
	}
	if len(a.Mounts) != 2 || len(a.Volumes) != 2 {
		t.Errorf("%+v, %+v", a.Mounts, a.Volumes)
	}
	access := map[bool]string{true: "read only", false: "read and write"}
	want := "Mounts\nSource\tTarget\tAccess\n"
	for _, m := range a.Mounts {
		want += m.Source + "\t" + m.Target + "\t" + access[m.ReadOnly] + "\n"
	}
	want += "Volumes\nName\tTarget\tAccess\n"
	for _, v := range a.Volumes {
		want += v.Name + "\t" + v.Target + "\t" + access[v.ReadOnly] + "\n"
	}
	if got := w.Await(tab, `[...document.querySelectorAll("section[aria-labelledby=settings-title] table")].map(t => t.innerText + "\n").join("")`); got != want {
		t.Errorf("the tables are\n%s\nwant\n%s", got, want)
	}
}
