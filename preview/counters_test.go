package preview

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// TestCounters: each request, WebSocket and tunnel counts once, under its outcome, when it ends.
func TestCounters(t *testing.T) {
	began := make(chan struct{})
	box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ws":
			wsBox(w, r)
		case "/broken": // an upgrade that was not asked for
			c, _, _ := http.NewResponseController(w).Hijack()
			io.WriteString(c, "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
			c.Close()
		case "/silent":
			began <- struct{}{}
			<-r.Context().Done()
		default:
			body, _ := io.ReadAll(r.Body)
			w.WriteHeader(http.StatusTeapot)
			w.Write(body)
		}
	}))
	t.Cleanup(box.Close)
	var counters Counters
	var nothing atomic.Bool
	p := New(Options{Counters: &counters, Patience: time.Millisecond, MaxPerSession: 1, Dial: func(context.Context, Target) (net.Conn, error) {
		if nothing.Load() {
			return nil, syscall.ECONNREFUSED
		}
		return net.Dial("tcp", box.Listener.Addr().String())
	}})
	ended := make(chan struct{}, 1)
	f := &fixture{t: t, proxy: p, front: httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		if r.URL.Path == "/tunnel" {
			p.ServeTunnel(w, r, lab)
		} else {
			p.ServeHTTP(w, r, Visit{Target: lab})
		}
	}))}
	t.Cleanup(func() { p.Close(); f.front.Close() })
	const open = true
	check := func(after string, answered, refused, failed, abandoned int64, stillOpen bool) {
		t.Helper()
		c := &counters
		got := fmt.Sprint(c.Answered.Load(), c.Refused.Load(), c.Failed.Load(), c.Abandoned.Load(), c.Open.Load() == 1)
		if want := fmt.Sprint(answered, refused, failed, abandoned, stillOpen); got != want {
			t.Errorf("%s: %s, want %s", after, got, want)
		}
	}
	send := func(path, body string, header ...string) {
		t.Helper()
		r, err := http.NewRequest("POST", f.front.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		f.do(r, header...)
		<-ended
	}

	send("/", strings.Repeat("x", 100_000))
	check("an answer", 1, 0, 0, 0, !open)
	if in, out := counters.In.Load(), counters.Out.Load(); in < 100_000 || in > 101_000 || out < 100_000 || out > 101_000 {
		t.Errorf("%d bytes in, %d bytes out", in, out)
	}
	send("/", "", "Service-Worker", "script")
	check("a service worker", 1, 1, 0, 0, !open)
	send("/broken", "")
	check("no valid answer", 1, 1, 1, 0, !open)

	ws, _, err := f.websocket("/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	check("an open WebSocket", 1, 1, 1, 0, open)
	res, err := f.front.Client().Get(f.front.URL)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	<-ended
	check("one request too many", 1, 2, 1, 0, open)
	ws.Close()
	<-ended
	check("a WebSocket", 2, 2, 1, 0, !open)

	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", f.front.URL+"/silent", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-began
		leave()
	}()
	if _, err := f.front.Client().Do(r); err == nil {
		t.Error("a silent server has answered")
	}
	<-ended
	check("a client that left", 2, 2, 1, 1, !open)

	in := counters.In.Load()
	ws, _, err = f.websocket("/tunnel", nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.WriteMessage(websocket.BinaryMessage, []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	if _, answer, err := ws.ReadMessage(); err != nil || !strings.Contains(string(answer), "418") {
		t.Errorf("%q, %v", answer, err)
	}
	check("an open tunnel", 2, 2, 1, 1, open)
	ws.Close()
	<-ended
	check("a tunnel", 3, 2, 1, 1, !open)
	if sent := counters.In.Load() - in; sent != 35 {
		t.Errorf("%d bytes through the tunnel", sent)
	}
	send("/tunnel", "")
	check("no request for a tunnel", 3, 3, 1, 1, !open)

	p.transport.CloseIdleConnections()
	nothing.Store(true)
	send("/", "")
	check("nothing listens", 3, 3, 2, 1, !open)
	if ws, _, err := f.websocket("/tunnel", nil); err == nil {
		ws.Close()
		t.Error("a tunnel to nothing")
	}
	<-ended
	check("a tunnel to nothing", 3, 3, 3, 1, !open)
}
