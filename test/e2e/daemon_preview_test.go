package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/testutil"
)

// browser is a headless Chromium, driven by the DevTools protocol.
type browser struct {
	t  *testing.T
	ws *websocket.Conn
	id int
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	program := testutil.RequireProgram(t, "chromium")
	dir, err := os.MkdirTemp("", "boxd-e2e-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cmd := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-extensions", "--no-proxy-server",
		"--user-data-dir="+dir, "--remote-debugging-port=0", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t}
	t.Cleanup(func() {
		if b.ws == nil || b.ws.WriteJSON(map[string]any{"id": 1 << 30, "method": "Browser.close"}) != nil {
			cmd.Process.Kill()
		}
		cmd.Wait()
		if b.ws != nil {
			b.ws.Close()
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		_, url, ok := strings.Cut(lines.Text(), "DevTools listening on ")
		if !ok {
			continue
		}
		go io.Copy(io.Discard, out)
		ws, resp, err := websocket.DefaultDialer.Dial(url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		b.ws = ws
		return b
	}
	t.Fatal("Chromium ended: ", lines.Err())
	return nil
}

// call sends a command and waits for its answer.
func (b *browser) call(session, method string, params any, result any) error {
	b.t.Helper()
	b.id++
	b.ws.SetWriteDeadline(time.Now().Add(patience))
	b.ws.SetReadDeadline(time.Now().Add(patience))
	if err := b.ws.WriteJSON(map[string]any{"id": b.id, "sessionId": session, "method": method, "params": params}); err != nil {
		b.t.Fatal(err)
	}
	for {
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := b.ws.ReadJSON(&answer); err != nil {
			b.t.Fatal(err)
		}
		switch {
		case answer.ID != b.id: // an event
		case answer.Error != nil:
			return fmt.Errorf("%s: %s", method, answer.Error.Message)
		case result != nil:
			return json.Unmarshal(answer.Result, result)
		default:
			return nil
		}
	}
}

// open opens a tab, which stays open.
func (b *browser) open(url string) (tab string) {
	b.t.Helper()
	var target struct{ TargetID string }
	var attached struct{ SessionID string }
	if err := b.call("", "Target.createTarget", map[string]any{"url": url}, &target); err != nil {
		b.t.Fatal(err)
	}
	if err := b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached); err != nil {
		b.t.Fatal(err)
	}
	return attached.SessionID
}

// eval returns the value of an expression, a string or the promise of one.
func (b *browser) eval(tab, expression string) (string, error) {
	var got struct {
		Result           struct{ Value string }
		ExceptionDetails *struct{ Text string }
	}
	err := b.call(tab, "Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &got)
	if err == nil && got.ExceptionDetails != nil {
		err = fmt.Errorf("%s: %s", expression, got.ExceptionDetails.Text)
	}
	return got.Result.Value, err
}

// await evaluates until the value is not empty: a page that loads has no value yet, or loses it.
func (b *browser) await(tab, expression string) string {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got, err := b.eval(tab, expression)
		if got != "" && err == nil {
			return got
		}
		if time.Now().After(deadline) {
			page, _ := b.eval(tab, "location.href + ' ' + document.documentElement.outerHTML")
			b.t.Fatalf("%s: %q, %v; the page: %s", expression, got, err, page)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A page of a server in a box opens in a browser, with what it loads and its WebSocket; the page of
// another box cannot read it, although the browser has the cookies of both.
func TestPreviewInBrowser(t *testing.T) {
	testutil.RequireProgram(t, "python3")
	chromium := startBrowser(t)
	d := newDaemon(t)
	port := fmt.Sprint(freePorts(1))
	address := "127.0.0.1:" + port
	d.env = append(d.env, "BOXD_PREVIEW_URL=http://preview.localhost:"+port, "BOXD_PREVIEW_LISTEN="+address)
	d.start()
	links, origins := map[string]string{}, map[string]string{}
	for _, box := range []string{"a", "b"} {
		d.says(0, "", "exec", box, "--", "true")
		for from, to := range map[string]string{"page.py": "page.py", "page.js": "app.js"} {
			d.says(0, "", "cp", filepath.Join("testdata", from), box+":"+to)
		}
		if r := d.run("start", box, "--id", "web", "--ready-port", "8000", "--wait", "--", "python3", "page.py", "box-"+box, "8000"); r.status != 0 {
			t.Fatal(r)
		}
		r := d.run("link", box, "8000", "--ttl", "10m")
		if r.status != 0 {
			t.Fatal(r)
		}
		links[box] = strings.TrimSpace(r.stdout)
		origins[box], _, _ = strings.Cut(links[box], "/?")
		if want := "http://8000-" + box + ".preview.localhost:" + port; origins[box] != want {
			t.Fatalf("%q, want %q", origins[box], want)
		}
	}

	if got := chromium.await(chromium.open(origins["a"]+"/"), "document.title"); got != "This page is private" {
		t.Errorf("without a link: %q", got)
	}
	tabs := map[string]string{}
	for box, link := range links {
		tab := chromium.open(link)
		tabs[box] = tab
		if got := chromium.await(tab, `document.getElementById("out")?.textContent`); got != "echo: hello from the page" {
			t.Errorf("box %s: %q", box, got)
		}
		if got := chromium.await(tab, `document.getElementById("title").innerText + " " + location.href`); got != "BOX-"+strings.ToUpper(box)+" "+origins[box]+"/" {
			t.Errorf("box %s: title and style, URL without the link: %q", box, got)
		}
		if got := chromium.await(tab, `document.cookie`); got != "app=box-"+box {
			t.Errorf("box %s: its page sees the cookies %q", box, got)
		}
		if got := chromium.await(tab, `fetch("/data").then(r => r.text())`); !strings.Contains(got, "the secret of box-"+box) {
			t.Errorf("box %s: its page reads %q of itself", box, got)
		}
		if got := chromium.await(tab, `fetch("/log").then(r => r.text())`); strings.Contains(got, "boxd-") || !strings.Contains(got, "app=box-"+box) {
			t.Errorf("box %s got secrets, or not its cookie: %s", box, got)
		}
	}

	// The page of box a tries to reach box b.
	for name, attack := range map[string]string{
		"fetch":       `fetch(B + "/data?stolen", {credentials: "include"}).then(r => r.text(), e => "failed")`,
		"blind fetch": `fetch(B + "/data?stolen", {credentials: "include", mode: "no-cors"}).then(r => "" + r.status + r.type, e => "failed")`,
		"post":        `fetch(B + "/data?stolen", {method: "POST", credentials: "include", mode: "no-cors", body: "x"}).then(r => "" + r.status + r.type, e => "failed")`,
		"script":      `new Promise(done => { const s = document.createElement("script"); s.onload = () => done(window.stolen || "nothing"); s.onerror = () => done("failed"); s.src = B + "/data?stolen"; document.head.append(s) })`,
		"image":       `new Promise(done => { const s = new Image(); s.onload = () => done("loaded"); s.onerror = () => done("failed"); s.src = B + "/data?stolen" })`,
		"websocket":   `new Promise(done => { const s = new WebSocket(B.replace("http", "ws") + "/ws?stolen"); s.onopen = () => done("open"); s.onerror = () => done("failed") })`,
		"frame":       `new Promise(done => { const f = document.createElement("iframe"); f.onload = () => { try { done(f.contentDocument ? f.contentDocument.body.innerHTML : "failed") } catch { done("failed") } }; f.src = B + "/?stolen"; document.body.append(f) })`,
		"worker":      `navigator.serviceWorker ? navigator.serviceWorker.register("/app.js").then(() => "installed", () => "failed") : Promise.resolve("failed")`,
	} {
		got, err := chromium.eval(tabs["a"], `(() => { const B = "`+origins["b"]+`"; return `+attack+` })()`)
		if want := map[string]string{"blind fetch": "0opaque", "post": "0opaque"}[name]; err != nil || got != "failed" && got != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got := chromium.await(tabs["b"], `fetch("/log").then(r => r.text())`); strings.Contains(got, "stolen") {
		t.Errorf("requests of the page of box a reached box b:\n%s", got)
	}

	d.says(0, "", "link", "a", "--revoke")
	if got := chromium.await(chromium.open(links["a"]), "document.title"); got != "This page is private" {
		t.Errorf("with a revoked link: %q", got)
	}
	d.says(0, "", "sessions", "sensitive", "b")
	if got := chromium.await(chromium.open(origins["b"]+"/"), "document.title"); got != "This page is private" {
		t.Errorf("a sensitive session: %q", got)
	}
	d.says(125, "", "link", "b", "8000")
}

// When a session becomes sensitive, no byte leaves its box through a link after the answer: the box
// has no connection any more, although a stream ran at full speed.
func TestRatchetResetsPreviews(t *testing.T) {
	testutil.RequireProgram(t, "python3")
	d := newDaemon(t)
	port := fmt.Sprint(freePorts(1))
	address := "127.0.0.1:" + port
	d.env = append(d.env, "BOXD_PREVIEW_URL=http://preview.localhost:"+port, "BOXD_PREVIEW_LISTEN="+address)
	d.start()
	const server = `
import socket
s = socket.create_server(("127.0.0.1", 8000), backlog=8)
while True:
    c, _ = s.accept()
    try:
        if c.recv(65536):
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            while True:
                c.sendall(b"x" * 65536)
    except OSError as e:
        print("ended:", e.strerror, flush=True)
`
	if r := d.run("start", "a", "--id", "web", "--ready-port", "8000", "--wait", "--", "python3", "-c", server); r.status != 0 {
		t.Fatal(r)
	}
	connections := func() (open int) {
		t.Helper()
		r := d.run("exec", "a", "--", "cat", "/proc/net/tcp")
		for _, line := range strings.Split(r.stdout, "\n") {
			// sl local_address rem_address st: 1F40 is 8000, and 01 is ESTABLISHED.
			if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], ":1F40") && f[3] == "01" {
				open++
			}
		}
		if r.status != 0 {
			t.Fatal(r)
		}
		return open
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	for _, end := range [][]string{{"link", "a", "--revoke"}, {"sessions", "sensitive", "a"}} {
		name, link := end[0], strings.TrimSpace(d.run("link", "a", "8000").stdout)
		resp, err := (&http.Client{Transport: transport}).Get(link)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.CopyN(io.Discard, resp.Body, 16<<20); err != nil {
			t.Fatalf("%s: status %d, %d bytes, %v", name, resp.StatusCode, n, err)
		}
		read := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, resp.Body)
			read <- err
		}()
		if n := connections(); n != 1 {
			t.Errorf("%s: %d connections before", name, n)
		}
		if r := d.run(end...); r.status != 0 {
			t.Fatal(r)
		}
		if n := connections(); n != 0 {
			t.Errorf("%s: %d connections after the answer", name, n)
		}
		if err := <-read; err == nil {
			t.Errorf("%s: the stream looks complete", name)
		}
		resp.Body.Close()
	}
	if r := d.run("link", "a", "8000"); r.status == 0 || !strings.Contains(r.stderr, "sensitive") {
		t.Error(r)
	}
}
