package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/browser"
)

// A page of a server in a box opens in a browser, with what it loads and its WebSocket; the page of
// another box cannot read it, although the browser has the cookies of both.
func TestPreviewInBrowser(t *testing.T) {
	testutil.RequireProgram(t, "python3")
	chromium := browser.Start(t, patience)
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

	if got := chromium.Await(chromium.Open(origins["a"]+"/"), "document.title"); got != "This page is private" {
		t.Errorf("without a link: %q", got)
	}
	tabs := map[string]string{}
	for box, link := range links {
		tab := chromium.Open(link)
		tabs[box] = tab
		if got := chromium.Await(tab, `document.getElementById("out")?.textContent`); got != "echo: hello from the page" {
			t.Errorf("box %s: %q", box, got)
		}
		if got := chromium.Await(tab, `document.getElementById("title").innerText + " " + location.href`); got != "BOX-"+strings.ToUpper(box)+" "+origins[box]+"/" {
			t.Errorf("box %s: title and style, URL without the link: %q", box, got)
		}
		if got := chromium.Await(tab, `document.cookie`); got != "app=box-"+box {
			t.Errorf("box %s: its page sees the cookies %q", box, got)
		}
		if got := chromium.Await(tab, `fetch("/data").then(r => r.text())`); !strings.Contains(got, "the secret of box-"+box) {
			t.Errorf("box %s: its page reads %q of itself", box, got)
		}
		if got := chromium.Await(tab, `fetch("/log").then(r => r.text())`); strings.Contains(got, "boxd-") || !strings.Contains(got, "app=box-"+box) {
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
		got, err := chromium.Eval(tabs["a"], `(() => { const B = "`+origins["b"]+`"; return `+attack+` })()`)
		if want := map[string]string{"blind fetch": "0opaque", "post": "0opaque"}[name]; err != nil || got != "failed" && got != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got := chromium.Await(tabs["b"], `fetch("/log").then(r => r.text())`); strings.Contains(got, "stolen") {
		t.Errorf("requests of the page of box a reached box b:\n%s", got)
	}

	d.says(0, "", "link", "a", "--revoke")
	if got := chromium.Await(chromium.Open(links["a"]), "document.title"); got != "This page is private" {
		t.Errorf("with a revoked link: %q", got)
	}
	d.says(0, "", "sessions", "sensitive", "b")
	if got := chromium.Await(chromium.Open(origins["b"]+"/"), "document.title"); got != "This page is private" {
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
