package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/preview"
)

// previewed is a fixture with a listener of previews, and a client that finds all their hosts there.
type previewed struct {
	*fixture
	browser *http.Client
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
}

func servePreviews(t *testing.T, config *tls.Config, change func(*Options, *policy.Config)) *previewed {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := preview.NewHosts("preview.localhost", DefaultTenant)
	if err != nil {
		t.Fatal(err)
	}
	links, err := preview.NewLinks(bytes.Repeat([]byte("k"), 32))
	if err != nil {
		t.Fatal(err)
	}
	u := &url.URL{Scheme: "http", Host: "preview.localhost:8090"}
	if config != nil {
		u.Scheme = "https"
	}
	f := &previewed{}
	f.fixture = serve(t, func(o *Options, p *policy.Config) {
		o.Previews = &Previews{Hosts: hosts, Links: links, URL: u, MaxTTL: 24 * time.Hour}
		if change != nil {
			change(o, p)
		}
	})
	f.dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
	}
	transport := &http.Transport{DialContext: f.dial, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	f.browser = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f.ServePreviews(l, config); err != nil {
			t.Errorf("serving previews: %v", err)
		}
	}()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := f.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		<-done
	})
	return f
}

// visit asks for a URL of a preview.
func (f *previewed) visit(url string, header ...string) (*http.Response, string) {
	f.t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := f.browser.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp, string(body)
}

func (f *previewed) link(session, port string) (origin, query string) {
	f.t.Helper()
	var n int
	fmt.Sscan(port, &n)
	link, err := f.as(operatorToken, "").Link(f.t.Context(), session, n, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	if left := time.Until(link.ExpiresAt); left < 59*time.Minute || left > time.Hour {
		f.t.Errorf("the link expires in %v", left)
	}
	origin, query, ok := strings.Cut(link.URL, "/?")
	if !ok {
		f.t.Fatal(link.URL)
	}
	return origin, query
}

func echoHeaders(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s|%s|%s|%s", r.Method, r.URL.RequestURI(), r.Header.Get("Authorization"), r.Header.Get("Cookie"), r.Host)
}

// A link, or the cookie that a browser gets for it, opens one port of one session, and nothing else
// does. The API is not behind the hosts of previews, and they are not behind the API.
func TestPreviewsNeedLinks(t *testing.T) {
	f := servePreviews(t, nil, nil)
	ours := f.as(operatorToken, "")
	ensure(t, ours, "a")
	ensure(t, ours, "b")
	port := listening(t, echoHeaders)
	a, query := f.link("a", port)
	b, _ := f.link("b", port)
	if want := "http://" + port + "-a.acme.preview.localhost:8090"; a != want {
		t.Fatalf("%s, want %s", a, want)
	}
	inside := "|localhost:" + port
	if resp, body := f.visit(a + "/x?y=1&" + query); resp.StatusCode != 200 || body != "GET /x?y=1||"+inside {
		t.Errorf("a link: %d %s", resp.StatusCode, body)
	}
	resp, _ := f.visit(a+"/x?"+query, "Accept", "text/html")
	if resp.StatusCode != 303 || resp.Header.Get("Location") != a+"/x" || len(resp.Cookies()) != 1 {
		t.Fatalf("a browser with a link: %d %v", resp.StatusCode, resp.Header)
	}
	cookie := resp.Cookies()[0].Name + "=" + resp.Cookies()[0].Value
	if resp, body := f.visit(a+"/v1/sessions", "Sec-Fetch-Site", "same-origin", "Cookie", "app=1; "+cookie); resp.StatusCode != 200 || body != "GET /v1/sessions||app=1"+inside || resp.Header.Get("Content-Security-Policy") != "" {
		t.Errorf("a browser with the cookie: %d %s", resp.StatusCode, body)
	}
	for _, c := range []struct {
		name, url string
		header    []string
		want      int
	}{
		{"no link", a + "/", nil, 403},
		{"no link, with a token of the API", a + "/", []string{"Authorization", "Bearer " + adminToken}, 403},
		{"the link of another session", b + "/?" + query, nil, 403},
		{"the cookie of another session", b + "/", []string{"Cookie", cookie, "Sec-Fetch-Site", "same-origin"}, 403},
		{"the cookie, used by another box's page", a + "/", []string{"Cookie", cookie, "Origin", b}, 403},
		{"another port", strings.Replace(a, port+"-a", "1-a", 1) + "/?" + query, nil, 403},
		{"another tenant", strings.Replace(a, ".acme", ".other", 1) + "/?" + query, nil, 403},
		{"the default tenant", strings.Replace(a, ".acme", "", 1) + "/?" + query, nil, 403},
		{"no such session", strings.Replace(a, "-a", "-none", 1) + "/?" + query, nil, 403},
		{"the domain", "http://preview.localhost:8090/v1/status", []string{"Authorization", "Bearer " + adminToken}, 421},
		{"the API by address", "http://127.0.0.1:8090/v1/status", []string{"Authorization", "Bearer " + adminToken}, 421},
		{"another host", "http://evil.example/v1/status", nil, 421},
		{"health", "http://localhost:8090/healthz", nil, 421},
	} {
		resp, body := f.visit(c.url, c.header...)
		if resp.StatusCode != c.want || strings.Contains(body, "GET") {
			t.Errorf("%s: %d %s", c.name, resp.StatusCode, body)
		}
	}
	_, none := f.visit(strings.Replace(a, "-a", "-none", 1) + "/")
	if _, some := f.visit(a + "/"); none != some {
		t.Errorf("a session shows itself: %q, and %q if there is none", some, none)
	}
	for token, want := range map[string]string{operatorToken: "", adminToken: "", "of-the-app": "Bearer of-the-app"} {
		if _, body := f.visit(a+"/?"+query, "Authorization", "Bearer "+token); body != "GET /|"+want+"|"+inside {
			t.Errorf("the box got the token %q: %s", token, body)
		}
	}
	for _, host := range []string{strings.TrimPrefix(a, "http://"), "preview.localhost", "API.Preview.Localhost."} {
		req, _ := http.NewRequest("GET", f.base+"/v1/status", nil)
		req.Host = host
		req.Header.Set("Authorization", "Bearer "+adminToken)
		if resp, err := f.http.Do(req); err != nil || resp.StatusCode != 403 {
			t.Errorf("the API as %q: %+v, %v", host, resp, err)
		} else {
			resp.Body.Close()
		}
	}
	if err := ours.RevokeLinks(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if resp, _ := f.visit(a + "/?" + query); resp.StatusCode != 403 {
		t.Errorf("a revoked link: %d", resp.StatusCode)
	}
	if resp, _ := f.visit(a+"/", "Sec-Fetch-Site", "none", "Cookie", cookie); resp.StatusCode != 403 {
		t.Errorf("the cookie of a revoked link: %d", resp.StatusCode)
	}
	_, query = f.link("a", port)
	if err := ours.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	ensure(t, ours, "a")
	f.link("a", port)
	if resp, _ := f.visit(a + "/?" + query); resp.StatusCode != 403 {
		t.Errorf("the link of an earlier session of the name: %d", resp.StatusCode)
	}
}

// TestPreviewMetrics: requests by link and through the API are in the metrics, also refused ones, without names.
func TestPreviewMetrics(t *testing.T) {
	f := servePreviews(t, nil, nil)
	ours := f.as(operatorToken, "")
	ensure(t, ours, "a")
	port := listening(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, strings.Repeat("x", 5000)) })
	a, query := f.link("a", port)
	f.visit(a + "/?" + query)                                             // answered
	f.raw("GET", "/v1/sessions/a/ports/"+port+"/", operatorToken, "")     // answered
	f.visit(a + "/")                                                      // refused: no link
	f.visit(strings.Replace(a, port+"-a", "elsewhere", 1) + "/?" + query) // refused: no preview
	f.raw("GET", "/v1/sessions/none/ports/"+port+"/", operatorToken, "")  // refused: no session
	if _, err := forward(t, ours, echo(t)); err != nil {                  // answered, and open
		t.Fatal(err)
	}
	// The requests end after their answers.
	var body []byte
	for deadline := time.Now().Add(testutil.Patience()); ; {
		_, body = f.raw("GET", "/metrics", scraperToken, "")
		if strings.Contains(string(body), "\nboxd_preview_requests_open 1\n") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s", body)
		}
	}
	for _, line := range []string{
		`boxd_preview_requests_total{outcome="answered"} 2`, `boxd_preview_requests_total{outcome="refused"} 3`,
		`boxd_preview_requests_total{outcome="failed"} 0`, `boxd_preview_requests_total{outcome="abandoned"} 0`,
	} {
		if !strings.Contains(string(body), "\n"+line+"\n") {
			t.Errorf("no %q", line)
		}
	}
	for name, least := range map[string]float64{"boxd_preview_in_bytes_total": 100, "boxd_preview_out_bytes_total": 10_000} {
		_, value, _ := strings.Cut(string(body), "\n"+name+" ")
		value, _, _ = strings.Cut(value, "\n")
		if n, err := strconv.ParseFloat(value, 64); err != nil || n < least || n > least+2000 {
			t.Errorf("%s %s", name, value)
		}
	}
}

func TestMakingLinks(t *testing.T) {
	f := servePreviews(t, nil, nil)
	ensure(t, f.as(operatorToken, ""), "a")
	ensure(t, f.as(operatorToken, ""), "A_b")
	for _, c := range []struct{ session, body, token, code, field string }{
		{"a", `{"port":80}`, viewerToken, apitypes.CodeForbidden, ""},
		{"a", `{"port":80}`, strangerToken, apitypes.CodeSessionNotFound, ""},
		{"a", `{"port":0}`, operatorToken, apitypes.CodeInvalid, "port"},
		{"a", `{}`, operatorToken, apitypes.CodeInvalid, "port"},
		{"a", `{"port":65536}`, operatorToken, apitypes.CodeInvalid, "port"},
		{"a", `{"port":3128}`, operatorToken, apitypes.CodeInvalid, "port"},
		{"a", `{"port":80,"ttl":-1}`, operatorToken, apitypes.CodeInvalid, "ttl"},
		{"a", `{"port":80,"ttl":"25h"}`, operatorToken, apitypes.CodeInvalid, "ttl"},
		{"A_b", `{"port":80}`, operatorToken, apitypes.CodeInvalid, "id"},
		{"none", `{"port":80}`, operatorToken, apitypes.CodeSessionNotFound, ""},
	} {
		if p := f.problem("POST", "/v1/sessions/"+c.session+"/links", c.token, c.body); p.Code != c.code || p.Field != c.field {
			t.Errorf("%s %s: %+v", c.session, c.body, p)
		}
	}
	if p := f.problem("DELETE", "/v1/sessions/a/links", viewerToken, ""); p.Code != apitypes.CodeForbidden {
		t.Errorf("revoking as viewer: %+v", p)
	}
	without := serve(t, nil)
	ensure(t, without.as(operatorToken, ""), "a")
	if p := without.problem("POST", "/v1/sessions/a/links", operatorToken, `{"port":80}`); p.Code != apitypes.CodePreviewsDisabled || p.Status != 404 {
		t.Errorf("without preview.url: %+v", p)
	}
}

// When a session becomes sensitive, or its links are revoked, a stream at full speed that a link has
// opened ends: nothing leaves the box after the answer. A link does not open it again.
func TestStreamsOfLinksEnd(t *testing.T) {
	for name, end := range map[string]func(*previewed) error{
		"ratchet": func(f *previewed) error {
			on := true
			_, err := f.as(operatorToken, "").Update(t.Context(), "a", apitypes.SessionUpdate{LiveWishes: spec.LiveWishes{Sensitive: &on}})
			return err
		},
		"revoked": func(f *previewed) error { return f.as(operatorToken, "").RevokeLinks(t.Context(), "a") },
	} {
		t.Run(name, func(t *testing.T) {
			f := servePreviews(t, nil, nil)
			ensure(t, f.as(operatorToken, ""), "a")
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			failed := make(chan error, 1)
			go func() { // a server in the box that writes as fast as it can
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					failed <- nil
					return
				}
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
				for err == nil {
					_, err = c.Write(make([]byte, 64<<10))
				}
				failed <- err
			}()
			_, port, _ := net.SplitHostPort(l.Addr().String())
			a, query := f.link("a", port)
			resp, err := f.browser.Get(a + "/?" + query)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if _, err := io.CopyN(io.Discard, resp.Body, 8<<20); err != nil {
				t.Fatal(err)
			}
			if err := end(f); err != nil {
				t.Fatal(err)
			}
			if conns := f.engine.dialled(); len(conns) != 1 {
				t.Fatalf("%d connections to the box", len(conns))
			} else if _, err := conns[0].Write([]byte("x")); err == nil {
				t.Error("the connection to the box is open after the answer")
			}
			if err := <-failed; err == nil {
				t.Error("the box goes on")
			}
			if _, err := io.Copy(io.Discard, resp.Body); err == nil {
				t.Error("the stream looks complete")
			}
			if resp, _ := f.visit(a + "/?" + query); resp.StatusCode != 403 {
				t.Errorf("the link afterwards: %d", resp.StatusCode)
			}
		})
	}
}

// Browsers speak HTTP/2, and HTTP/1.1 for WebSockets, to the same listener. Proxies may speak HTTP/2
// without TLS.
func TestPreviewProtocols(t *testing.T) {
	cert, key := certificate(t, pkix.Name{CommonName: "localhost"}, nil, nil)
	f := servePreviews(t, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}, nil)
	ensure(t, f.as(operatorToken, ""), "a")
	port := listening(t, func(w http.ResponseWriter, r *http.Request) {
		if websocket.IsWebSocketUpgrade(r) {
			ws, err := new(websocket.Upgrader).Upgrade(w, r, nil)
			if err != nil {
				return
			}
			defer ws.Close()
			kind, text, _ := ws.ReadMessage()
			ws.WriteMessage(kind, text)
			return
		}
		for i := range 3 {
			fmt.Fprintf(w, "data: %d %s\n\n", i, r.Header.Get("X-Forwarded-Proto"))
			w.(http.Flusher).Flush()
		}
	})
	a, query := f.link("a", port)
	resp, body := f.visit(a + "/?" + query)
	if resp.ProtoMajor != 2 || !strings.HasPrefix(a, "https://") || body != "data: 0 https\n\ndata: 1 https\n\ndata: 2 https\n\n" {
		t.Errorf("%s %s: %s", a, resp.Proto, body)
	}
	exchanged, _ := f.visit(a+"/?"+query, "Accept", "text/html")
	c := exchanged.Cookies()[0]
	if c.Name != "__Host-boxd-preview" || !c.Secure || !c.HttpOnly {
		t.Errorf("%v", c)
	}
	d := websocket.Dialer{NetDialContext: f.dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	ws, wsResp, err := d.Dial("wss"+strings.TrimPrefix(a, "https")+"/", http.Header{"Cookie": {c.Name + "=" + c.Value}, "Origin": {a}})
	if err != nil {
		t.Fatal(err)
	}
	defer wsResp.Body.Close()
	defer ws.Close()
	ws.WriteMessage(websocket.TextMessage, []byte("echo"))
	if _, text, err := ws.ReadMessage(); string(text) != "echo" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	plain := servePreviews(t, nil, nil)
	ensure(t, plain.as(operatorToken, ""), "a")
	a, query = plain.link("a", port)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	h2c := &http.Transport{DialContext: plain.dial, Protocols: protocols}
	defer h2c.CloseIdleConnections()
	plain.browser.Transport = h2c
	if resp, body := plain.visit(a + "/?" + query); resp.ProtoMajor != 2 || !strings.HasPrefix(body, "data: 0") {
		t.Errorf("without TLS: %s %s", resp.Proto, body)
	}
}
