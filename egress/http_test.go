package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/egress/rules"
)

func TestHTTP(t *testing.T) {
	w := newWorld(t)
	w.name("web.example", public1)
	w.name("api.example", public1)
	next := make(chan bool)
	w.place(public1+":80", w.server(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/headers":
			r.Header.Write(rw)
			fmt.Fprintf(rw, "Host=%s", r.Host)
		case "/echo":
			http.NewResponseController(rw).EnableFullDuplex()
			io.Copy(rw, r.Body)
		case "/stream":
			for i := range 3 {
				fmt.Fprintf(rw, "event %d\n", i)
				rw.(http.Flusher).Flush()
				<-next
			}
		case "/redirect":
			http.Redirect(rw, r, "http://169.254.169.254/latest/", http.StatusFound)
		case "/refuse":
			rw.WriteHeader(http.StatusRequestEntityTooLarge)
		case "/answer-headers":
			rw.Header().Set("Connection", "X-Hop")
			rw.Header().Set("X-Hop", "1")
			rw.Header().Set("Proxy-Authenticate", "Basic")
			rw.Header().Set("X-Stays", "1")
		case "/length":
			rw.Header().Set("Content-Length", "5")
			if r.Method != "HEAD" {
				io.WriteString(rw, "12345")
			}
		case "/none":
			rw.WriteHeader(http.StatusNoContent)
		}
	}))
	b := w.box(Config{Rules: allowing("web.example", "api.example")})
	c := b.client(t, nil)

	answer := b.raw("GET http://web.example/headers HTTP/1.1\r\nHost: web.example\r\nProxy-Authorization: Basic eDp5\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nX-Other: 2\r\n\r\n")
	body := answer[strings.Index(answer, "\r\n\r\n")+4:]
	if !strings.Contains(body, "X-Other: 2\r\n") || !strings.Contains(body, "Host=web.example") || strings.Count(body, "\r\n") != 1 {
		t.Errorf("the server got %q", body)
	}
	if r, err := c.Get("http://web.example/answer-headers"); err != nil || r.Header.Get("X-Stays") != "1" || r.Header.Get("X-Hop")+r.Header.Get("Proxy-Authenticate") != "" {
		t.Errorf("%v %+v", err, r)
	}
	const socket = "GET http://%s/ HTTP/1.1\r\nHost: %[1]s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	if answer := b.raw(fmt.Sprintf(socket, "web.example")); !strings.HasPrefix(answer, "HTTP/1.1 403 ") || !strings.Contains(answer, `write "web.example:80"`) {
		t.Errorf("a WebSocket: %q", answer)
	}
	// A redirect is the program's to follow, and is decided like any request.
	status, _, h := get(t, c, "http://web.example/redirect")
	if status != 302 {
		t.Error(status)
	}
	if status, text, _ := get(t, c, h.Get("Location")); status != 403 || !strings.Contains(text, "169.254.169.254 is a metadata address") {
		t.Errorf("%d %q", status, text)
	}

	big := bytes.Repeat([]byte("0123456789"), 30000)
	for name, reader := range map[string]io.Reader{"with its length": bytes.NewReader(big), "chunked": struct{ io.Reader }{bytes.NewReader(big)}} {
		r, err := c.Post("http://web.example/echo", "", reader)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(r.Body); !bytes.Equal(got, big) {
			t.Errorf("a body %s: %d bytes came back", name, len(got))
		}
		r.Body.Close()
	}

	// Requests in a row on one connection, for two hosts, one of them not allowed.
	answer = b.raw("GET http://web.example/headers HTTP/1.1\r\nHost: web.example\r\n\r\n" +
		"POST http://api.example/echo HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n" +
		"POST http://api.example/echo HTTP/1.1\r\nHost: api.example\r\nContent-Length: 3\r\n\r\ndef" +
		"HEAD http://api.example/length HTTP/1.1\r\nHost: api.example\r\n\r\n" +
		"GET http://api.example/none HTTP/1.1\r\nHost: api.example\r\n\r\n" +
		"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\nGET http://web.example/headers HTTP/1.1\r\nHost: web.example\r\n\r\n")
	br := bufio.NewReader(strings.NewReader(answer))
	for i, want := range []string{"200 Host=web.example", "200 abc", "200 def", "200 ", "204 ", "403 boxd: evil.example:80 is not allowed: no rule allows it\n"} {
		method := "GET"
		if i == 3 {
			method = "HEAD"
		}
		r, err := http.ReadResponse(br, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		body, _ := io.ReadAll(r.Body)
		if got := fmt.Sprint(r.StatusCode, " ", string(body)); got != want {
			t.Errorf("answer %d: %q, want %q", i, got, want)
		}
		if i == 3 && r.ContentLength != 5 {
			t.Errorf("HEAD: length %d", r.ContentLength)
		}
	}
	if rest, _ := io.ReadAll(br); len(rest) > 0 {
		t.Errorf("after a refusal: %q", rest)
	}

	// HTTP/1.0 knows no chunks: the end of the connection ends the body.
	if answer := b.raw("GET http://web.example/headers HTTP/1.0\r\nHost: web.example\r\n\r\n"); strings.Contains(answer, "chunked") || !strings.HasSuffix(answer, "Host=web.example") {
		t.Errorf("%q", answer)
	}

	// A piece of a response arrives before the next one is made.
	r, err := c.Get("http://web.example/stream")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(r.Body)
	for i := range 3 {
		if line, err := lines.ReadString('\n'); line != fmt.Sprintf("event %d\n", i) {
			t.Fatalf("%q %v", line, err)
		}
		next <- true
	}
	r.Body.Close()

	// 100 Continue comes when the server wants the body, and not when it refuses it.
	conn := b.dial()
	io.WriteString(conn, "POST http://web.example/echo HTTP/1.1\r\nHost: web.example\r\nContent-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
	br = bufio.NewReader(conn)
	if line, _ := br.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" {
		t.Errorf("%q", line)
	}
	io.WriteString(conn, "xyz")
	if rest, _ := io.ReadAll(br); !strings.HasSuffix(string(rest), "xyz") && !strings.Contains(string(rest), "xyz") {
		t.Errorf("%q", rest)
	}

	// A server that answers before it has the body.
	conn = b.dial()
	io.WriteString(conn, "POST http://web.example/refuse HTTP/1.1\r\nHost: web.example\r\nContent-Length: 1000000\r\n\r\nxyz")
	if rest, _ := io.ReadAll(conn); !strings.HasPrefix(string(rest), "HTTP/1.1 413 ") {
		t.Errorf("%q", rest)
	}
}

// TestCutBody: a response that is cut off does not look whole.
func TestCutBody(t *testing.T) {
	w := newWorld(t)
	w.name("web.example", public1)
	var answer atomic.Pointer[string]
	w.place(public1+":80", w.sink(func(c *net.TCPConn) {
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, *answer.Load())
	}))
	b := w.box(Config{Rules: allowing("web.example")})
	for text, status := range map[string]string{
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc":                               "200",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc":                                             "200",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef":                     "502",
		"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n":                                                        "502",
		"SSH-2.0-OpenSSH\r\n":                                                                         "502",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n":               "502",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 100<<10) + "\r\n\r\n":                          "502",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n": "200",
	} {
		answer.Store(&text)
		c := b.dial()
		io.WriteString(c, "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%.60q: %v", text, err)
			continue
		}
		body, err := io.ReadAll(r.Body)
		if !strings.HasPrefix(r.Status, status) || strings.HasSuffix(text, "abc") && err == nil {
			t.Errorf("%.60q: %s %q %v", text, r.Status, body, err)
		}
	}
}

func TestInject(t *testing.T) {
	w := newWorld(t)
	w.name("api.example", public1)
	w.name("plain.example", public1)
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	set := func(value string) {
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var got atomic.Pointer[http.Request]
	w.place(public1+":443", w.tlsServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		got.Store(r)
		rw.Header().Set("X-Echo", "your key: "+r.Header.Get("Authorization"))
		rw.Header().Set("X-Part", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		rw.Header().Set("X-"+strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), "1")
		io.WriteString(rw, r.Host)
	}), "api.example"))
	w.place(public1+":80", w.server(func(rw http.ResponseWriter, r *http.Request) {
		io.WriteString(rw, "plain "+r.Header.Get("Authorization"))
	}))
	r := allowing("api.example", "plain.example")
	r.Inject = []rules.Inject{{Host: "api.example", Header: "authorization", ValueFrom: rules.Source{File: file}}}
	var mu sync.Mutex
	trouble := ""
	b := w.box(Config{Rules: r, Trouble: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		trouble += err.Error() + "\n"
	}})
	b.cfg.Roots = w.roots()
	if err := b.SetRules(r); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"Bearer Secret-one", "Bearer Secret-two"} {
		set(value)
		for _, request := range []string{
			"GET http://api.example/x HTTP/1.1\r\nHost: api.example\r\nAuthorization: mine\r\naUTHORIZATION: mine\r\nConnection: close\r\n\r\n",
			"GET http://API.example.:80/x HTTP/1.1\r\nHost: API.example.\r\nConnection: close\r\n\r\n",
			"CONNECT api.example:80 HTTP/1.1\r\nHost: api.example:80\r\n\r\nGET /x HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n",
		} {
			answer := b.raw(request)
			if r := got.Swap(nil); r == nil || len(r.Header["Authorization"]) != 1 || r.Header.Get("Authorization") != value || r.TLS == nil || r.URL.Path != "/x" || r.Host != "api.example" {
				t.Fatalf("%q: the server got %+v; %q", request, r, answer)
			}
			if strings.Contains(strings.ToLower(answer), "secret-") || !strings.Contains(answer, "X-Echo: your key: [redacted]\r\n") || !strings.HasSuffix(answer, "0\r\n\r\n") && !strings.HasSuffix(answer, "api.example") {
				t.Errorf("%q", answer)
			}
		}
	}
	// A server answers TRACE with the headers that it got.
	for _, method := range []string{"TRACE", "Trace"} {
		answer := b.raw(method + " http://api.example/ HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(answer, "HTTP/1.1 405 ") || got.Load() != nil {
			t.Errorf("%s: %q", method, answer)
		}
	}
	w.mu.Lock()
	for _, ap := range w.dialled {
		if ap.Port() != 443 {
			t.Errorf("%s was dialled", ap)
		}
	}
	w.mu.Unlock()
	if answer := b.raw("GET http://plain.example/ HTTP/1.1\r\nHost: plain.example\r\nConnection: close\r\n\r\n"); !strings.Contains(answer, "plain ") || strings.Contains(answer, "Secret") {
		t.Errorf("a host without a rule: %q", answer)
	}
	// A tunnel is not touched.
	if status, text, _ := get(t, b.client(t, &tls.Config{RootCAs: w.roots()}), "https://api.example/"); status != 200 || got.Load().Header.Get("Authorization") != "" {
		t.Errorf("%d %q", status, text)
	}

	// Failures say nothing of the secret, or of where it is.
	for name, prepare := range map[string]func(){
		"no file":       func() { os.Remove(file) },
		"an empty file": func() { set("") },
		"a newline":     func() { set("Secret-x\r\nX-Other: 1") },
		"a large file":  func() { set("Secret-" + strings.Repeat("x", maxSecret)) },
		"a server in plain": func() {
			set("Secret-x")
			w.place(public1+":443", w.places[netip.MustParseAddrPort(public1+":80")])
			b.resetTransport()
		},
		"a wrong authority": func() { w.ca = nil; w.place(public1+":443", w.tlsServer(http.NotFoundHandler(), "api.example")) },
		"a wrong name":      func() { w.place(public1+":443", w.tlsServer(http.NotFoundHandler(), "x.example")) },
		"an echo in TLS": func() {
			cert := w.certificate("api.example")
			b.cfg.Roots = w.roots()
			w.place(public1+":443", w.sink(func(c *net.TCPConn) {
				s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
				http.ReadRequest(bufio.NewReader(s))
				io.WriteString(s, "Secret-x\r\n\r\n")
			}))
		},
		"an echo as garbage": func() {
			w.place(public1+":443", w.sink(func(c *net.TCPConn) { io.WriteString(c, "Secret-x\r\n\r\n") }))
		},
	} {
		set("Secret-x")
		prepare()
		b.resetTransport()
		answer := b.raw("GET http://api.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n")
		if !strings.HasPrefix(answer, "HTTP/1.1 502") || strings.Contains(answer, "Secret") || strings.Contains(answer, dir) {
			t.Errorf("%s: %q", name, answer)
		}
	}
	b.Shut()
	b.Wait() // the last one is observed after it was answered
	if all := fmt.Sprintf("%+v %+v", b.seen, b.Denials()); strings.Contains(all, "Secret") || strings.Contains(all, dir) || !strings.Contains(all, errSecret.Error()) || !strings.Contains(all, errAnswer.Error()) {
		t.Errorf("observed: %s", all)
	}
	if strings.Count(trouble, "\n") != 4 || strings.Count(trouble, file) != 4 || strings.Contains(trouble, "Secret") { // one for each value that is none
		t.Errorf("the operator gets %q", trouble)
	}
}

// TestInjectedSecretInAnswers: no verbatim copy of a secret comes back outside of a body, and what docs/network.md
// says of other forms is true.
func TestInjectedSecretInAnswers(t *testing.T) {
	const secret = "Secret/one two"
	encoded := []string{base64.StdEncoding.EncodeToString([]byte(secret)), url.QueryEscape(secret), strings.ToUpper(secret)}
	w := newWorld(t)
	w.name("api.example", public1)
	cert := w.certificate("api.example")
	w.place(public1+":443", w.sink(func(c *net.TCPConn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		http.ReadRequest(bufio.NewReader(s))
		io.WriteString(s, "HTTP/1.1 299 "+secret+"\r\nX-Twice: "+secret+secret+"\r\nX-Last: "+secret+"\r\nX-Other: "+strings.Join(encoded, ";")+
			"\r\nX-Half: "+secret[:7]+"\r\nX-Rest: "+secret[7:]+"\r\nTrailer: X-Late\r\nTransfer-Encoding: chunked\r\n\r\n4;x="+secret+"\r\nbody\r\n0\r\nX-Late: "+secret+"\r\n\r\n")
		s.Close()
	}))
	t.Setenv("BOXD_TEST_SECRET", secret)
	r := allowing("api.example")
	r.Inject = []rules.Inject{{Host: "api.example", Header: "Authorization", ValueFrom: rules.Source{Env: "BOXD_TEST_SECRET"}}}
	b := w.box(Config{Rules: r})
	b.cfg.Roots = w.roots()
	b.resetTransport()
	answer := b.raw("GET http://api.example/ HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 299 \r\n") || !strings.HasSuffix(answer, "\r\n\r\n4\r\nbody\r\n0\r\n\r\n") {
		t.Errorf("%q", answer)
	}
	if strings.Contains(answer, secret) || !strings.Contains(answer, "X-Twice: [redacted][redacted]\r\n") || !strings.Contains(answer, "X-Last: [redacted]\r\n") {
		t.Errorf("verbatim: %q", answer)
	}
	for _, form := range append(encoded, "X-Half: "+secret[:7], "X-Rest: "+secret[7:]) {
		if !strings.Contains(answer, form) {
			t.Errorf("%q was changed, so docs/network.md and SECURITY.md say too little: %q", form, answer)
		}
	}
}

// resetTransport drops kept connections.
func (b *box) resetTransport() { b.SetRules(b.now.Load().set.Rules) }

func TestBodyOfASlowProgram(t *testing.T) {
	w := newWorld(t)
	w.name("web.example", public1)
	w.place(public1+":80", w.server(func(rw http.ResponseWriter, r *http.Request) { io.Copy(rw, r.Body) }))
	r := allowing("web.example")
	b := w.box(Config{Rules: r})
	b.now.Load().set.Limits.Idle = 50e6 // shorter than the rules allow
	start := time.Now()
	if answer := b.raw("POST http://web.example/ HTTP/1.1\r\nHost: web.example\r\nContent-Length: 9\r\n\r\nabc"); strings.Contains(answer, "200") {
		t.Errorf("%q", answer)
	}
	c := b.await(func(c Connection) bool { return c.Ended })
	if c.Reason == "" || time.Since(start) < 50*time.Millisecond {
		t.Errorf("%+v", c)
	}
}

// TestLongUpload: a body may take longer than the time that a connection may be idle, as long as bytes move.
func TestLongUpload(t *testing.T) {
	const pieces = 50
	w := newWorld(t)
	w.name("web.example", public1)
	w.place(public1+":80", w.server(func(rw http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(rw, "%d %v", n, err)
	}))
	limited := allowing("web.example")
	limited.Limits.Idle = 1e9
	var wg sync.WaitGroup
	for framing, body := range map[string][2]string{"Content-Length: 50": {"x", ""}, "Transfer-Encoding: chunked": {"1\r\nx\r\n", "0\r\n\r\n"}} {
		wg.Go(func() {
			c := w.box(Config{Rules: limited}).dial()
			fmt.Fprintf(c, "POST http://web.example/ HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n%s\r\n\r\n", framing)
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for range pieces {
				<-tick.C
				io.WriteString(c, body[0])
			}
			io.WriteString(c, body[1])
			if answer, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(answer), "50 <nil>") {
				t.Errorf("%s: %q, %v", framing, answer, err)
			}
		})
	}
	wg.Wait()
}

func TestReadHeadErrors(t *testing.T) {
	for _, text := range []string{"", "GET", "GET http://a/ HTTP/1.1\r\nHost: a"} {
		if _, err := readHead(bufio.NewReader(strings.NewReader(text))); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestMalformedNamesTarget: a request that is refused because of its form is reported with the target that it means.
func TestMalformedNamesTarget(t *testing.T) {
	w := shop(t)
	b := w.box(Config{Rules: rules.Rules{Public: true, Inject: []rules.Inject{{Host: "shop.example", Header: "X-Key", ValueFrom: rules.Source{Env: "HOME"}}}}})
	for _, c := range []struct {
		request, protocol, name, address, what string
		port                                   uint16
	}{
		{"TRACE http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n", "inject", "shop.example", "invalid AddrPort", "shop.example:80", 80},
		{"GET / HTTP/1.1\r\nHost: Plain.example:8080\r\n\r\n", "http", "plain.example", "invalid AddrPort", "plain.example:8080", 8080},
		{"GET / HTTP/1.1\r\nHost: 192.0.2.7\r\n\r\n", "http", "", "192.0.2.7:80", "192.0.2.7:80", 80},
		{"OPTIONS * HTTP/1.1\r\nHost: [2001:db8::7]:81\r\n\r\n", "http", "", "[2001:db8::7]:81", "[2001:db8::7]:81", 81},
		{"GET http://one.example/ HTTP/1.1\r\nHost: two.example\r\n\r\n", "http", "one.example", "invalid AddrPort", "one.example:80", 80},
		{"CONNECT other.example:22 HTTP/1.1\r\nHost: other.example:22\r\nContent-Length: 1\r\n\r\n", "connect", "other.example", "invalid AddrPort", "other.example:22", 22},
		{"GET / HTTP/1.0\r\n\r\n", "http", "", "invalid AddrPort", "http request", 0},
	} {
		b.raw(c.request)
		got := b.await(func(seen Connection) bool {
			return seen.Rule == "malformed" && seen.Protocol == c.protocol && seen.Name == c.name && seen.Port == c.port
		})
		if got.Address.String() != c.address || got.Allowed || got.Reason == "" {
			t.Errorf("%q: %+v", c.request, got)
		}
		if !slices.Contains(b.Denials(), Denial{"network", c.what, "malformed", 1}) {
			t.Errorf("%q: %v", c.request, b.Denials())
		}
		b.mu.Lock()
		b.seen = nil
		b.mu.Unlock()
	}
}
