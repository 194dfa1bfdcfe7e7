package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/preview"
	"github.com/boxd/boxd/session"
)

func TestCutPort(t *testing.T) {
	for in, want := range map[string]string{
		"/v1/sessions/a/ports/80":            "a 80 /v1/sessions/a/ports/80",
		"/v1/sessions/a/ports/80/":           "a 80 /v1/sessions/a/ports/80",
		"/v1/sessions/a/ports/80//x/../%2f/": "a 80 /v1/sessions/a/ports/80",
		"/v1/sessions/a/ports/80/80/":        "a 80 /v1/sessions/a/ports/80",
		"/v1/sessions/a%3Ab@c/ports/65535/x": "a:b@c 65535 /v1/sessions/a%3Ab@c/ports/65535",
		"/v1/sessions/a/ports":               "",
		"/v1/sessions/a/ports/":              "",
		"/v1/sessions/a/ports/0":             "",
		"/v1/sessions/a/ports/080":           "",
		"/v1/sessions/a/ports/+80":           "",
		"/v1/sessions/a/ports/65536":         "",
		"/v1/sessions/a/ports/8%30":          "",
		"/v1/sessions/a/ports%2F80/":         "",
		"/v1/sessions/../ports/80":           "",
		"/v1/sessions/a%2Fports%2F80/x":      "",
		"/v1/sessions/a%2F..%2Fb/ports/80":   "",
		"/v1/sessions//ports/80":             "",
		"/v1//sessions/a/ports/80":           "",
		"/V1/sessions/a/ports/80":            "",
	} {
		u, err := url.Parse("http://x" + in)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if id, port, prefix, ok := cutPort(u); ok {
			got = id + " " + port + " " + prefix
		}
		if got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

// listening is a server in a box.
func listening(t *testing.T, h http.HandlerFunc) (port string) {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestPorts(t *testing.T) {
	f := serve(t, nil)
	port := listening(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s|%s|%s|%s", r.Method, r.URL.EscapedPath(), r.URL.RawQuery, body, r.Header.Get("Authorization"), r.Header.Get("X-Boxd-Tenant"))
	})
	ensure(t, f.as(operatorToken, ""), "a")
	base := "/v1/sessions/a/ports/" + port
	for _, c := range []struct{ method, path, body, want string }{
		{"GET", "/", "", "GET / |||"},
		{"GET", "/a//b/../%2f/?limit=x&x", "", "GET /a//b/../%2f/ limit=x&x|||"},
		{"POST", "/files", "text", "POST /files |text||"},
		{"DELETE", "/v1/sessions/a", "", "DELETE /v1/sessions/a |||"},
		{"OPTIONS", "/x", "", "OPTIONS /x |||"},
		{"MKCOL", "/x", "body", "MKCOL /x |body||"},
	} {
		resp, body := f.raw(c.method, base+c.path, operatorToken, c.body)
		if resp.StatusCode != 200 || string(body) != c.want || !strings.Contains(resp.Header.Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("%s %s: %d %q, want %q", c.method, c.path, resp.StatusCode, body, c.want)
		}
	}
	for _, c := range []struct{ method, path, token, code string }{
		{"GET", base + "/", "", apitypes.CodeUnauthenticated},
		{"GET", base + "/", viewerToken, apitypes.CodeForbidden},
		{"GET", base + "/", strangerToken, apitypes.CodeSessionNotFound},
		{"POST", "/v1/sessions/none/ports/" + port + "/", operatorToken, apitypes.CodeSessionNotFound},
		{"GET", "/v1/sessions/a/ports/0", operatorToken, apitypes.CodeInvalid},
		{"GET", "/v1/sessions/a/ports/http", operatorToken, apitypes.CodeInvalid},
		{"GET", "/v1/sessions/a/tunnels/65536", operatorToken, apitypes.CodeInvalid},
		{"GET", "/v1/sessions/a/ports/3128/", operatorToken, apitypes.CodeInvalid},
		{"GET", "/v1/sessions/a/tunnels/1080", operatorToken, apitypes.CodeInvalid},
		{"GET", "/v1/sessions/a/tunnels/" + port, viewerToken, apitypes.CodeForbidden},
	} {
		if p := f.problem(c.method, c.path, c.token, ""); p.Code != c.code {
			t.Errorf("%s %s: %+v", c.method, c.path, p)
		}
	}
	sub := f.sessions.Subscribe("", 0)
	defer sub.Close()
	for _, b := range f.engine.boxes {
		b.Remove(t.Context())
	}
	for e := range sub.C {
		if e.Type == session.EventState { // it is lost
			break
		}
	}
	if resp, body := f.raw("GET", base+"/", operatorToken, ""); resp.StatusCode != 502 || !strings.Contains(string(body), "not running") {
		t.Errorf("a lost box: %d %s", resp.StatusCode, body)
	}
	if s, err := f.as(operatorToken, "").Session(t.Context(), "a"); err != nil || s.State != "failed" {
		t.Errorf("a visit made a box: %+v, %v", s, err)
	}
}

// TestBoxSpeaksFirst: whatever a box answers, and however often, the headers that protect the caller are the daemon's.
func TestBoxSpeaksFirst(t *testing.T) {
	const early = "HTTP/1.1 103 Early Hints\r\nX-Content-Type-Options: none\r\nX-Request-Id: box\r\nSet-Cookie: boxd-login=x\r\nLink: </a>\r\n\r\n"
	const forged = "X-Content-Type-Options: none\r\nX-Request-Id: box\r\nSet-Cookie: boxd-login=x\r\n"
	f := serve(t, nil)
	ensure(t, f.as(operatorToken, ""), "a")
	for name, c := range map[string]struct {
		answer string
		status int
	}{
		"one answer":       {"HTTP/1.1 200 OK\r\n" + forged + "Content-Length: 2\r\n\r\nok", 200},
		"early hints":      {early + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200},
		"all of 1xx":       {early + "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 199 x\r\n\r\n" + early + "HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n", 404},
		"no body":          {early + "HTTP/1.1 304 Not Modified\r\n" + forged + "\r\n", 304},
		"no valid answer":  {early + "nonsense\r\n\r\n", 502},
		"no answer":        {early, 502},
		"trailers":         {early + "HTTP/1.1 200 OK\r\nTrailer: X-Request-Id, X-Content-Type-Options\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + forged + "\r\n", 200},
		"late trailers":    {early + "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + forged + "\r\n", 200},
		"headers to drop":  {early + "HTTP/1.1 200 OK\r\nConnection: X-Content-Type-Options, X-Request-Id\r\n" + forged + "Content-Length: 2\r\n\r\nok", 200},
		"upgrade":          {early + "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + forged + "\r\n", 101},
		"upgrade unasked":  {early + "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n" + forged + "\r\n", 502},
		"upgrade garbled":  {early + "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: \x01\r\n" + forged + "\r\n", 502},
		"large early hint": {"HTTP/1.1 103 x\r\nX: " + strings.Repeat("x", 70<<10) + "\r\n\r\n", 502},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				io.WriteString(conn, c.answer)
			}
		}()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		header := []string{"X-Request-ID", "mine"}
		if strings.HasPrefix(name, "upgrade") {
			header = append(header, "Connection", "Upgrade", "Upgrade", "websocket")
		}
		resp, _ := f.raw("GET", "/v1/sessions/a/ports/"+port+"/", operatorToken, "", header...)
		l.Close()
		<-served
		h := resp.Header
		if id, sniff := h["X-Request-Id"], h["X-Content-Type-Options"]; resp.StatusCode != c.status || len(id) != 1 || id[0] != "mine" || len(sniff) != 1 || sniff[0] != "nosniff" || h["Set-Cookie"] != nil || h["Link"] != nil {
			t.Errorf("%s: status %d, want %d: %v", name, resp.StatusCode, c.status, h)
		}
		if len(resp.Trailer) > 0 {
			t.Errorf("%s: trailers %v", name, resp.Trailer)
		}
	}
}

// echo answers each line with the same line.
func echo(t *testing.T) (port int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // splice(2) would leave pipes behind
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// forward returns a connection through a tunnel of c. It has carried a line.
func forward(t *testing.T, c *client.Client, port int) (*bufio.ReadWriter, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	refused, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		preview.Forward(ctx, l, func(ctx context.Context) (*preview.Tunnel, error) {
			tunnel, err := c.Tunnel(ctx, "a", port)
			if err != nil {
				refused <- err
			}
			return tunnel, err
		}, nil)
	}()
	t.Cleanup(func() { cancel(); <-done })
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil { // a refused connection may be reset while it is dialled
		return nil, <-refused
	}
	t.Cleanup(func() { conn.Close() })
	rw := bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
	if err := line(rw); err != nil {
		return nil, <-refused
	}
	return rw, nil
}

func line(rw *bufio.ReadWriter) error {
	rw.WriteString("line\n")
	rw.Flush()
	got, err := rw.ReadString('\n')
	if err == nil && got != "line\n" {
		err = errors.New("got " + got)
	}
	return err
}

func TestTunnels(t *testing.T) {
	f := serve(t, nil)
	ours, port := f.as(operatorToken, ""), echo(t)
	if _, err := forward(t, ours, port); !isCode(err, apitypes.CodeSessionNotFound) {
		t.Errorf("no session: %v", err)
	}
	ensure(t, ours, "a")
	if _, err := forward(t, ours, port); err != nil {
		t.Error(err)
	}
	if _, err := forward(t, f.as(strangerToken, ""), port); !isCode(err, apitypes.CodeSessionNotFound) {
		t.Errorf("another tenant: %v", err)
	}
	var refused *preview.TunnelError
	if _, err := forward(t, ours, 1); !errors.As(err, &refused) || refused.Status != 502 || !strings.Contains(refused.Text, "Nothing listens on port 1") {
		t.Errorf("nothing listens: %v", err)
	}
	conn, err := forward(t, ours, port)
	if err != nil {
		t.Fatal(err)
	}
	if err := ours.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := line(conn); err == nil {
		t.Error("a tunnel outlived its session")
	}
}

// When a session becomes sensitive, previews and tunnels of all but administrators end, and no
// further one begins.
func TestSensitiveSessionsAreNotVisited(t *testing.T) {
	f := serve(t, nil)
	ours, admin, port := f.as(operatorToken, ""), f.as(adminToken, "acme"), echo(t)
	ensure(t, ours, "a")
	begun, ended := make(chan struct{}), make(chan struct{})
	page := listening(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		http.NewResponseController(w).Flush()
		if r.URL.Path == "/stream" {
			close(begun)
			<-r.Context().Done()
			close(ended)
		}
	})
	stream := make(chan error, 1)
	req, _ := http.NewRequestWithContext(t.Context(), "GET", f.base+"/v1/sessions/a/ports/"+page+"/stream", nil)
	req.Header.Set("Authorization", "Bearer "+operatorToken)
	go func() {
		resp, err := f.http.Do(req)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		stream <- err
	}()
	<-begun
	mine, err := forward(t, ours, port)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := forward(t, admin, port)
	if err != nil {
		t.Fatal(err)
	}
	on := true
	if _, err := ours.Update(t.Context(), "a", apitypes.SessionUpdate{LiveWishes: spec.LiveWishes{Sensitive: &on}}); err != nil {
		t.Fatal(err)
	}
	if err := line(mine); err == nil {
		t.Error("the tunnel of an operator goes on")
	}
	if err := <-stream; err == nil {
		t.Error("the stream of an operator looks complete")
	}
	<-ended
	if err := line(theirs); err != nil {
		t.Errorf("the tunnel of an administrator: %v", err)
	}
	if _, err := forward(t, ours, port); !isCode(err, apitypes.CodeDenied) {
		t.Errorf("a new tunnel of an operator: %v", err)
	}
	if p := f.problem("GET", "/v1/sessions/a/ports/"+page+"/", operatorToken, ""); p.Code != apitypes.CodeDenied {
		t.Errorf("a new request of an operator: %+v", p)
	}
	if _, err := forward(t, admin, port); err != nil {
		t.Errorf("a new tunnel of an administrator: %v", err)
	}
	if resp, _ := f.raw("GET", "/v1/sessions/a/ports/"+page+"/", adminToken, "", TenantHeader, "acme"); resp.StatusCode != 200 {
		t.Errorf("a new request of an administrator: %d", resp.StatusCode)
	}
}

// A profile without a network has previews for administrators only.
func TestProfilesWithoutNetworkAreNotVisited(t *testing.T) {
	off := false
	f := serve(t, func(_ *Options, p *policy.Config) {
		p.Profiles = map[string]policy.ProfileConfig{"quiet": {AllowNetwork: &off}}
	})
	ours, port := f.as(operatorToken, ""), echo(t)
	if _, err := ours.Ensure(t.Context(), apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{Profile: "quiet"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := forward(t, ours, port); !isCode(err, apitypes.CodeDenied) {
		t.Error(err)
	}
	if _, err := forward(t, f.as(adminToken, "acme"), port); err != nil {
		t.Error(err)
	}
}
