package preview

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
)

// fixture is a proxy in front of a server that plays the box.
type fixture struct {
	t     testing.TB
	proxy *Proxy
	box   net.Listener
	dials atomic.Int32
	front *httptest.Server
}

type config struct {
	Options
	prefix string
	http2  bool
	box    http.Handler
	tcp    func(net.Conn) // instead of box
}

func newFixture(t testing.TB, c config) *fixture {
	t.Helper()
	f := &fixture{t: t}
	var err error
	if f.box, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if c.tcp != nil {
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				conn, err := f.box.Accept()
				if err != nil {
					return
				}
				wg.Go(func() { defer conn.Close(); c.tcp(conn) })
			}
		})
		t.Cleanup(func() { f.box.Close(); wg.Wait() })
	} else {
		box := httptest.NewUnstartedServer(c.box)
		box.Listener.Close()
		box.Listener = f.box
		box.Start()
		t.Cleanup(box.Close)
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, target Target) (net.Conn, error) {
			f.dials.Add(1)
			if target != lab {
				return nil, fmt.Errorf("target %+v at 10.9.8.7", target)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", f.box.Addr().String())
		}
	}
	f.proxy = New(c.Options)
	v := Visit{Target: lab, Prefix: c.prefix}
	f.front = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tunnel" {
			f.proxy.ServeTunnel(w, r, lab)
			return
		}
		f.proxy.ServeHTTP(w, r, v)
	}))
	if f.front.EnableHTTP2 = c.http2; c.http2 {
		f.front.StartTLS()
	} else {
		f.front.Start()
	}
	t.Cleanup(func() {
		f.proxy.Close()
		f.front.CloseClientConnections()
		f.front.Close()
	})
	return f
}

func (f *fixture) get(path string, header ...string) (*http.Response, string) {
	f.t.Helper()
	r, err := http.NewRequest("GET", f.front.URL+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.do(r, header...)
}

func (f *fixture) do(r *http.Request, header ...string) (*http.Response, string) {
	f.t.Helper()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := f.front.Client().Transport.RoundTrip(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return res, string(body)
}

// TestForms: the ways in which servers send answers, to clients of both versions of HTTP.
func TestForms(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/plain", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s %s", r.Method, r.Host, r.Header.Get("X-Forwarded-Proto"), r.Proto)
	})
	mux.HandleFunc("/chunked", func(w http.ResponseWriter, r *http.Request) {
		for range 3 {
			io.WriteString(w, "part ")
			w.(http.Flusher).Flush()
		}
	})
	mux.HandleFunc("/trailers", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum, X-Boxd-Sum, Set-Cookie")
		io.WriteString(w, "body")
		w.(http.Flusher).Flush()
		for _, name := range []string{"X-Sum", "X-Boxd-Sum", "Set-Cookie"} {
			w.Header().Set(name, fmt.Sprint(len(body), r.Trailer.Get("X-Client")))
		}
		w.Header().Set(http.TrailerPrefix+"X-Late", "late")
		w.Header().Set(http.TrailerPrefix+"X-Boxd-Late", "late")
	})
	mux.HandleFunc("/hints", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Strict-Transport-Security", "max-age=1")
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "after")
	})
	mux.HandleFunc("/none", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) })
	mux.HandleFunc("/teapot", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(418) })
	for _, http2 := range []bool{false, true} {
		f := newFixture(t, config{http2: http2, box: mux})
		proto := map[bool]string{false: "http", true: "https"}[http2]
		for _, c := range []struct {
			path   string
			status int
			want   string
		}{
			{"/plain", 200, "GET localhost:3000 " + proto + " HTTP/1.1"},
			{"/chunked", 200, "part part part "},
			{"/hints", 200, "after"},
			{"/none", 204, ""},
			{"/teapot", 418, ""},
		} {
			res, body := f.get(c.path)
			if res.StatusCode != c.status || body != c.want || (res.ProtoMajor == 2) != http2 {
				t.Errorf("%s: %s %d %q, want %d %q", c.path, res.Proto, res.StatusCode, body, c.status, c.want)
			}
		}
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			t.Errorf("an informational answer: %d %v", code, h)
			return nil
		}})
		hints, _ := http.NewRequestWithContext(ctx, "GET", f.front.URL+"/hints", nil)
		f.do(hints)
		r, _ := http.NewRequest("POST", f.front.URL+"/trailers", io.MultiReader(strings.NewReader("some"))) // length unknown
		r.Trailer = http.Header{"X-Client": {"!"}}
		res, body := f.do(r)
		if got := fmt.Sprint(res.Trailer); body != "body" || got != "map[X-Late:[late] X-Sum:[4!]]" {
			t.Errorf("%q, trailers %s", body, got)
		}
		if n := f.dials.Load(); n != 1 {
			t.Errorf("%d connections for requests one after another", n)
		}
	}
}

// TestBigBodies: 64 MB each way, and no more of it in memory than buffers.
func TestBigBodies(t *testing.T) {
	const size = 64 << 20
	f := newFixture(t, config{box: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		io.Copy(h, r.Body)
		w.Header().Set("X-Sum", hex.EncodeToString(h.Sum(nil)))
		io.Copy(w, io.LimitReader(pattern{}, size))
	})})
	want := sha256.New()
	io.Copy(want, io.LimitReader(pattern{}, size))
	res, err := f.front.Client().Post(f.front.URL, "", io.LimitReader(pattern{}, size))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got := sha256.New()
	io.Copy(got, res.Body)
	if sum := hex.EncodeToString(want.Sum(nil)); res.Header.Get("X-Sum") != sum || hex.EncodeToString(got.Sum(nil)) != sum {
		t.Error("the bytes differ")
	}
}

type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i)
	}
	return len(p), nil
}

// TestEvents: each event arrives before the next one is sent, however late that is.
func TestEvents(t *testing.T) {
	next := make(chan string)
	ended := make(chan struct{})
	const stall = 100 * time.Millisecond
	f := newFixture(t, config{http2: true, Options: Options{Stall: stall}, box: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		for {
			select {
			case e := <-next:
				fmt.Fprintf(w, "data: %s\n\n", e)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})})
	res, err := f.front.Client().Get(f.front.URL)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(res.Body)
	for _, e := range []string{"one", "two"} {
		next <- e
		line, _ := lines.ReadString('\n')
		lines.ReadString('\n')
		if line != "data: "+e+"\n" {
			t.Fatalf("%q", line)
		}
		time.Sleep(2 * stall) // a deadline of the last write would have passed
	}
	res.Body.Close()
	<-ended // the box learns that the client left
}

func wsBox(w http.ResponseWriter, r *http.Request) {
	u := websocket.Upgrader{Subprotocols: []string{"vite-hmr"}} // checks Origin against Host
	ws, err := u.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer ws.Close()
	for {
		kind, m, err := ws.ReadMessage()
		if err != nil {
			return
		}
		ws.WriteMessage(kind, append([]byte(ws.Subprotocol()+" "), m...))
	}
}

func (f *fixture) websocket(path string, header http.Header) (*websocket.Conn, *http.Response, error) {
	d := websocket.Dialer{Subprotocols: []string{"other", "vite-hmr"}, TLSClientConfig: nil}
	if tr, ok := f.front.Client().Transport.(*http.Transport); ok && tr.TLSClientConfig != nil {
		d.TLSClientConfig = tr.TLSClientConfig.Clone()
		d.TLSClientConfig.NextProtos = nil
	}
	ws, res, err := d.Dial("ws"+strings.TrimPrefix(f.front.URL, "http")+path, header)
	if err == nil {
		f.t.Cleanup(func() { ws.Close() })
	}
	return ws, res, err
}

func TestWebSocket(t *testing.T) {
	for _, prefix := range []string{"", "/v1/p"} {
		f := newFixture(t, config{prefix: prefix, http2: true, box: http.HandlerFunc(wsBox)})
		ws, res, err := f.websocket(prefix+"/x", http.Header{"Origin": {f.front.URL}})
		if err != nil {
			t.Fatal(err)
		}
		if (prefix != "") != strings.Contains(fmt.Sprint(res.Header["Content-Security-Policy"]), "sandbox") || ws.Subprotocol() != "vite-hmr" {
			t.Errorf("%v", res.Header)
		}
		for _, m := range []string{"a", strings.Repeat("b", 1<<20)} {
			ws.WriteMessage(websocket.TextMessage, []byte(m))
			if _, got, err := ws.ReadMessage(); string(got) != "vite-hmr "+m {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		}
		if _, res, err := f.websocket(prefix+"/x", http.Header{"Origin": {"https://evil.example"}}); err == nil || res.StatusCode != 403 {
			t.Errorf("a foreign origin: %v", err)
		}
	}
}

// TestForged: what the client claims about itself does not reach the box, and neither do
// secrets.
func TestForged(t *testing.T) {
	f := newFixture(t, config{box: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Write(w)
	})})
	res, body := f.get("/x?boxd-link=secret&a=b", "Authorization", "Bearer secret", "Cookie", "boxd-preview=secret; a=b",
		"X-Forwarded-Host", "forged", "Forwarded", "for=forged", "Connection", "X-Forwarded-Proto, X-Forwarded-Host", "X-Boxd-Tenant", "forged",
		"Referer", f.front.URL+"/?boxd-link=secret", "Proxy-Authorization", "secret")
	if res.StatusCode != 200 || strings.Contains(body, "secret") || strings.Contains(body, "forged") ||
		!strings.Contains(body, "X-Forwarded-Host: "+strings.TrimPrefix(f.front.URL, "http://")) || !strings.Contains(body, "/x?a=b ") {
		t.Errorf("%d\n%s", res.StatusCode, body)
	}
}

// raw sends bytes to the front and returns the first line of each answer.
func (f *fixture) raw(request string) string {
	c, err := net.Dial("tcp", f.front.Listener.Addr().String())
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, request)
	all, _ := io.ReadAll(c)
	var status []string
	for line := range strings.Lines(string(all)) {
		if s, ok := strings.CutPrefix(line, "HTTP/1.1 "); ok {
			status = append(status, s[:3])
		}
	}
	return strings.Join(status, " ")
}

// TestSmuggling: the box sees as many requests as the front.
func TestSmuggling(t *testing.T) {
	var seen atomic.Int32
	var smuggled atomic.Bool
	f := newFixture(t, config{tcp: func(c net.Conn) { // a parser that a lenient server could have
		all := bufio.NewReader(c)
		for {
			line, err := all.ReadString('\n')
			if err != nil {
				return
			}
			if strings.HasSuffix(line, " HTTP/1.1\r\n") {
				seen.Add(1)
				if strings.HasPrefix(line, "GET /smuggled ") {
					smuggled.Store(true)
				}
			}
			if line == "\r\n" {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				io.Copy(io.Discard, all)
				return
			}
		}
	}})
	const inner = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, c := range []struct {
		name, request string
		status        string // of the answers
		box           int32  // requests that the box sees, at most
	}{
		{"CL.TE", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "200 200", 2},
		{"TE.TE", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", "501", 0},
		{"odd TE", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501", 0},
		{"space in TE", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "400", 0},
		{"two lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 38\r\n\r\n" + inner, "400", 0},
		{"signed length", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello", "400", 0},
		{"LF in header", "GET / HTTP/1.1\r\nHost: x\r\nA: b\n" + inner, "400", 0},
		{"CR in header", "GET / HTTP/1.1\r\nHost: x\r\nA: b\r" + inner, "400", 0},
		{"in the target", "GET /x%20HTTP/1.1%0d%0aHost:%20x%0d%0a%0d%0aGET%20/smuggled HTTP/1.1\r\nHost: x\r\n\r\n", "200 200", 2},
		{"in a body", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 35\r\n\r\n" + inner, "200 200", 2},
		{"h2c", "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n", "200 200", 2},
		{"CONNECT", "CONNECT 10.0.0.1:80 HTTP/1.1\r\nHost: x\r\n\r\n", "400 200", 1},
		{"absolute form", "GET http://10.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n", "200 200", 2},
		{"bad chunk", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", "any", 1}, // the box may answer first
	} {
		seen.Store(0)
		smuggled.Store(false)
		status := f.raw(c.request + "GET /end HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if status != c.status && c.status != "any" || seen.Load() > c.box || smuggled.Load() {
			t.Errorf("%s: %q, %d requests, smuggled %v; want %q, at most %d", c.name, status, seen.Load(), smuggled.Load(), c.status, c.box)
		}
	}
}

func TestPages(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 9, 8, 7), Port: 1}, Err: syscall.ECONNREFUSED}
	for _, c := range []struct {
		name   string
		dial   error
		answer string // of a box that is dialled
		accept string
		status int
		want   string
	}{
		{"refused", refused, "", "text/html", 502, "<h1>Nothing listens on port 3000</h1>"},
		{"refused, no browser", refused, "", "*/*", 502, "Nothing listens on port 3000: Start a server"},
		{"gone", errors.New("box 10.9.8.7 is lost"), "", "*/*", 502, "The session is not running"},
		{"no HTTP", nil, "SSH-2.0-x\r\n", "*/*", 502, "No valid answer"},
		{"closed", nil, "", "*/*", 502, "No valid answer"},
		{"long header", nil, "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", maxAnswerHeader) + "\r\n\r\n", "*/*", 502, "No valid answer"},
		{"wrong upgrade", nil, "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "*/*", 502, "No valid answer"},
	} {
		o := Options{Patience: time.Millisecond}
		if c.dial != nil {
			o.Dial = func(context.Context, Target) (net.Conn, error) { return nil, c.dial }
		}
		f := newFixture(t, config{Options: o, tcp: func(conn net.Conn) {
			http.ReadRequest(bufio.NewReader(conn))
			io.WriteString(conn, c.answer)
		}})
		res, body := f.get("/", "Accept", c.accept)
		if res.StatusCode != c.status || !strings.Contains(body, c.want) || strings.Contains(body, "10.9.8.7") {
			t.Errorf("%s: %d %s", c.name, res.StatusCode, body)
		}
		if strings.Contains(res.Header.Get("Content-Type"), "html") != (c.accept == "text/html") || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", c.name, res.Header)
		}
	}
}

// TestWaits: a request waits until its port opens, by an event or by polling, and is sent
// once.
func TestWaits(t *testing.T) {
	for _, events := range []bool{false, true} {
		var open atomic.Bool
		changed := make(chan struct{})
		tried := make(chan struct{}, 1000)
		var f *fixture
		o := Options{Patience: time.Hour, Dial: func(ctx context.Context, _ Target) (net.Conn, error) {
			tried <- struct{}{}
			if !open.Load() {
				return nil, syscall.ECONNREFUSED
			}
			return net.Dial("tcp", f.box.Addr().String())
		}}
		if events {
			o.Changed = func(Target) <-chan struct{} { return changed }
		}
		var bodies []string
		f = newFixture(t, config{Options: o, box: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			bodies = append(bodies, string(b))
		})})
		go func() {
			<-tried
			open.Store(true)
			close(changed)
		}()
		res, err := f.front.Client().Post(f.front.URL, "", strings.NewReader("once"))
		if err != nil || res.StatusCode != 200 || fmt.Sprint(bodies) != "[once]" {
			t.Errorf("%v, %v, the box got %q", res, err, bodies)
		}
		if err == nil {
			res.Body.Close()
		}
	}
}

// TestNoRepeat: a request that may have been sent is not sent again.
func TestNoRepeat(t *testing.T) {
	var seen atomic.Int32
	f := newFixture(t, config{tcp: func(c net.Conn) {
		http.ReadRequest(bufio.NewReader(c))
		seen.Add(1)
	}})
	res, err := f.front.Client().Post(f.front.URL, "", strings.NewReader("once"))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 502 || seen.Load() != 1 {
		t.Errorf("%d, sent %d times", res.StatusCode, seen.Load())
	}
}

// hang is a box whose answers begin, and go on when the request ends.
func hang(began chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		began <- struct{}{}
		<-r.Context().Done()
	}
}

func TestForget(t *testing.T) {
	began := make(chan struct{}, 10)
	mux := http.NewServeMux()
	mux.HandleFunc("/hang", hang(began))
	mux.HandleFunc("/silent", func(w http.ResponseWriter, r *http.Request) { began <- struct{}{}; <-r.Context().Done() })
	mux.HandleFunc("/ws", wsBox)
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	f := newFixture(t, config{box: mux})
	f.get("/") // leaves an idle connection
	stream, err := f.front.Client().Get(f.front.URL + "/hang")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	ws, _, err := f.websocket("/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	silent := make(chan string)
	go func() {
		res, err := f.front.Client().Get(f.front.URL + "/silent")
		if err != nil {
			silent <- err.Error()
			return
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		silent <- fmt.Sprint(res.StatusCode, " ", string(b))
	}()
	<-began
	<-began
	f.proxy.Forget("other", "lab")
	f.proxy.Forget(lab.Tenant, lab.Session)
	if _, err := io.ReadAll(stream.Body); err == nil {
		t.Error("a stream that was cut looks complete")
	}
	if _, _, err := ws.ReadMessage(); err == nil {
		t.Error("the WebSocket goes on")
	}
	if s := <-silent; !strings.HasPrefix(s, "502 The session is not running") {
		t.Error(s)
	}
	f.proxy.pool.mu.Lock()
	if n := len(f.proxy.pool.entries); n != 0 {
		t.Errorf("%d entries", n)
	}
	f.proxy.pool.mu.Unlock()
	before := f.dials.Load()
	if res, _ := f.get("/"); res.StatusCode != 200 || f.dials.Load() != before+1 {
		t.Errorf("afterwards: %d, %d dials", res.StatusCode, f.dials.Load()-before)
	}
}

// TestForgetWhileDialling: a connection to the old box is not used.
func TestForgetWhileDialling(t *testing.T) {
	var p *Proxy
	here, there := net.Pipe()
	p = New(Options{Dial: func(context.Context, Target) (net.Conn, error) {
		p.Forget(lab.Tenant, lab.Session)
		return here, nil
	}})
	defer p.Close()
	e, err := p.pool.acquire(lab)
	if err != nil {
		t.Fatal(err)
	}
	defer p.pool.release(e)
	ctx := context.WithValue(t.Context(), exchangeKey{}, &exchange{visit: Visit{Target: lab}, entry: e})
	if _, err := p.dial(ctx, "", ""); !errors.Is(err, errGone) {
		t.Error(err)
	}
	if _, err := there.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection stays open: %v", err)
	}
}

// TestForgetWhileWaiting: the request does not wait any longer.
func TestForgetWhileWaiting(t *testing.T) {
	tried := make(chan struct{}, 100)
	f := newFixture(t, config{Options: Options{Patience: time.Hour, Dial: func(context.Context, Target) (net.Conn, error) {
		tried <- struct{}{}
		return nil, syscall.ECONNREFUSED
	}}, tcp: func(net.Conn) {}})
	go func() {
		<-tried
		f.proxy.Forget(lab.Tenant, lab.Session)
	}()
	if res, body := f.get("/"); res.StatusCode != 502 || !strings.Contains(body, "not running") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// TestHangingDial: it is bounded, and ends with the last request of the session.
func TestHangingDial(t *testing.T) {
	for _, patience := range []time.Duration{50 * time.Millisecond, time.Hour} {
		dialling, ended := make(chan struct{}), make(chan struct{})
		f := newFixture(t, config{Options: Options{Patience: patience, Dial: func(ctx context.Context, _ Target) (net.Conn, error) {
			close(dialling)
			<-ctx.Done()
			close(ended)
			return nil, ctx.Err()
		}}, tcp: func(net.Conn) {}})
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, "GET", f.front.URL, nil)
		if patience == time.Hour {
			go func() { <-dialling; cancel() }()
			if _, err := f.front.Client().Do(r); err == nil {
				t.Error("answered")
			}
		} else if res, body := f.do(r); res.StatusCode != 504 {
			t.Errorf("%d %s", res.StatusCode, body)
		}
		<-ended
		cancel()
	}
}

// TestAbandonedDials: requests that come and go do not collect dials that hang.
func TestAbandonedDials(t *testing.T) {
	f := newFixture(t, config{Options: Options{MaxPerSession: 2, Patience: time.Hour, Dial: nil}, tcp: func(net.Conn) {}})
	f.proxy.o.Dial = func(ctx context.Context, _ Target) (net.Conn, error) {
		f.dials.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	send := func(ctx context.Context) {
		r, _ := http.NewRequestWithContext(ctx, "GET", f.front.URL, nil)
		if res, err := f.front.Client().Do(r); err == nil {
			res.Body.Close()
		}
	}
	wg.Go(func() { send(ctx) }) // keeps the session's entry
	for range 5 {
		short, stop := context.WithTimeout(ctx, 30*time.Millisecond)
		send(short)
		stop()
	}
	if n := f.dials.Load(); n > 2 {
		t.Errorf("%d dials", n)
	}
	cancel()
	wg.Wait()
}

func TestMaxPerSession(t *testing.T) {
	began := make(chan struct{}, 10)
	f := newFixture(t, config{Options: Options{MaxPerSession: 2}, box: hang(began)})
	var open []*http.Response
	for range 2 {
		res, err := f.front.Client().Get(f.front.URL)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, res)
	}
	if res, _ := f.get("/"); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
		t.Errorf("%d", res.StatusCode)
	}
	open[0].Body.Close()
	for {
		if res, err := f.front.Client().Get(f.front.URL); err == nil && res.StatusCode == 200 {
			res.Body.Close()
			break
		} else if err == nil {
			res.Body.Close()
		}
	}
	open[1].Body.Close()
	f.proxy.Close()
	if res, _ := f.get("/"); res.StatusCode != 503 {
		t.Errorf("after Close: %d", res.StatusCode)
	}
}

// TestIdleBox: a server that accepts and stays silent, before and in its answer, and a
// WebSocket on which nothing moves.
func TestIdleBox(t *testing.T) {
	began := make(chan struct{}, 10)
	mux := http.NewServeMux()
	mux.HandleFunc("/silent", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/hang", hang(began))
	mux.HandleFunc("/ws", wsBox)
	mux.HandleFunc("/ticks", func(w http.ResponseWriter, r *http.Request) {
		for range 15 {
			io.WriteString(w, ".")
			w.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	})
	f := newFixture(t, config{Options: Options{Idle: 200 * time.Millisecond}, box: mux})
	if res, body := f.get("/ticks"); res.StatusCode != 200 || len(body) != 15 {
		t.Errorf("a slow answer was cut after %q", body)
	}
	if res, body := f.get("/silent"); res.StatusCode != 504 {
		t.Errorf("silent: %d %s", res.StatusCode, body)
	}
	res, err := f.front.Client().Get(f.front.URL + "/hang")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("an answer that was cut looks complete")
	}
	res.Body.Close()
	ws, _, err := f.websocket("/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := ws.ReadMessage(); err == nil {
		t.Error("the WebSocket goes on")
	}
}

// TestSlowClients do not keep a connection to the box: one that does not read, and one
// that sends its body a byte at a time.
func TestSlowClients(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		ended := make(chan struct{}, 2)
		f := newFixture(t, config{http2: http2, Options: Options{Stall: 200 * time.Millisecond}, box: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "POST" {
				_, err := io.Copy(io.Discard, r.Body)
				if err == nil {
					t.Error("a body that was cut looks complete")
				}
			} else {
				io.Copy(w, pattern{})
			}
			ended <- struct{}{}
		})})
		res, err := f.front.Client().Get(f.front.URL)
		if err != nil {
			t.Fatal(err)
		}
		<-ended
		res.Body.Close()
		pr, pw := io.Pipe()
		go func() {
			for {
				if _, err := pw.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
		res, err = f.front.Client().Post(f.front.URL, "", pr)
		if err == nil {
			if res.StatusCode != 408 {
				t.Errorf("%d", res.StatusCode)
			}
			res.Body.Close()
		}
		pr.Close()
		<-ended
	}
}

// TestSlowWebSocket: a client that does not read its WebSocket.
func TestSlowWebSocket(t *testing.T) {
	ended := make(chan struct{})
	f := newFixture(t, config{Options: Options{Stall: 100 * time.Millisecond}, box: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		ws, err := new(websocket.Upgrader).Upgrade(w, r, nil)
		for err == nil {
			err = ws.WriteMessage(websocket.BinaryMessage, make([]byte, 64<<10))
		}
		ws.Close()
	})})
	if _, _, err := f.websocket("/", nil); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// bodyWriter is an answer to a request whose body comes through c.
type bodyWriter struct {
	http.ResponseWriter
	c        net.Conn
	deadline time.Time
}

func (w *bodyWriter) SetReadDeadline(t time.Time) error {
	w.deadline = t
	return w.c.SetReadDeadline(t)
}

// TestSteadyClient: a client may be slower in total than Stall, and use the connection again.
func TestSteadyClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		var wg sync.WaitGroup
		defer wg.Wait()
		defer server.Close()
		w := &bodyWriter{httptest.NewRecorder(), server, time.Time{}}
		b := &clientBody{ReadCloser: server, rc: http.NewResponseController(w), stall: 300 * time.Millisecond}
		wg.Go(func() {
			for range 12 {
				client.Write(make([]byte, minBody/2))
				time.Sleep(50 * time.Millisecond)
			}
			client.Close()
		})
		if got, err := io.ReadAll(b); len(got) != 12*minBody/2 || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if !w.deadline.IsZero() {
			t.Error("a deadline is left on the connection")
		}
	})
}

func TestPathMode(t *testing.T) {
	f := newFixture(t, config{prefix: "/v1/p", box: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/next")
		w.WriteHeader(302)
	})})
	for _, c := range []struct {
		path     string
		status   int
		location string
	}{
		{"/v1/p", 308, f.front.URL + "/v1/p/"},
		{"/v1/p?a=b", 308, f.front.URL + "/v1/p/?a=b"},
		{"/v1/p/", 302, "/v1/p/next"},
		{"/v1/px/", 404, ""},
		{"/v1/other", 404, ""},
		{"/v1/%70/", 404, ""},
	} {
		if res, _ := f.get(c.path); res.StatusCode != c.status || res.Header.Get("Location") != c.location {
			t.Errorf("%s: %d %q", c.path, res.StatusCode, res.Header.Get("Location"))
		}
	}
}
