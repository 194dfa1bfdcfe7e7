package door

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/langbot/protocol"
)

const secret = "0123456789abcdef0123456789abcdef"

// get requests a path with these headers, and returns status, body and header.
func get(t *testing.T, addr, path string, kv ...string) (int, string, http.Header) {
	t.Helper()
	c := dialRaw(t, addr, path, append([]string{"X-Nothing", "1"}, kv...)...)
	defer c.Close()
	var body []byte
	if c.resp.StatusCode != http.StatusSwitchingProtocols {
		var err error
		if body, err = io.ReadAll(c.resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	return c.resp.StatusCode, string(body), c.resp.Header
}

func wantStatus(t *testing.T, addr, path string, status int, kv ...string) {
	t.Helper()
	got, body, h := get(t, addr, path, kv...)
	if got != status || status == 401 && (body != "Unauthorized" || h.Get("Content-Length") != "12" || h.Get("Content-Type") != "text/plain; charset=utf-8") {
		t.Fatalf("%s %v: got %d %q %v, want %d", path, kv, got, body, h, status)
	}
}

// with returns the headers of an upgrade, with some of them replaced.
func with(kv ...string) []string { return append(append([]string{}, upgradeHeaders...), kv...) }

func TestPaths(t *testing.T) {
	b := newBackend(nil)
	_, addr := serve(t, b, Options{})
	for _, path := range []string{"/", "/rpc", "/rpc/ws/", "/healthz/", "/v1/sessions", "/v1/sessions//managed-process/ws", "/v1/sessions/x/managed-process//ws",
		"/v1/sessions/x/managed-process/y", "/v1/sessions/x/other/ws", "/v1/sessions/x/managed-process/y/z/ws", "/%2e%2e/rpc/ws"} {
		if status, body, _ := get(t, addr, path); status != 404 || body != "404: Not Found" {
			t.Errorf("%s: got %d %q", path, status, body)
		}
	}
	if status, body, h := get(t, addr, "/healthz"); status != 200 || body != `{"live":true}` || h.Get("Content-Type") != "application/json; charset=utf-8" {
		t.Errorf("got %d %q %v", status, body, h)
	}
	if status, body, _ := get(t, addr, "/readyz"); status != 503 || body != `{"ready":false}` {
		t.Errorf("got %d %q", status, body)
	}
	b.ready = true
	if status, body, _ := get(t, addr, "/readyz"); status != 200 || body != `{"ready":true}` {
		t.Errorf("got %d %q", status, body)
	}
	for _, path := range []string{"/rpc/ws", "/healthz", "/v1/sessions/x/managed-process/ws"} {
		resp, err := http.Post("http://"+addr+path, "text/plain", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 405 || resp.Header.Get("Allow") != "GET,HEAD" {
			t.Errorf("%s: got %v", path, resp)
		}
		resp, err = http.Head("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if want := map[string]int{"/healthz": 200}[path]; want == 200 && resp.StatusCode != 200 || want == 0 && resp.StatusCode != 401 {
			t.Errorf("HEAD %s: got %v", path, resp)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestWhoMayConnect(t *testing.T) {
	b := newBackend(nil)
	d, addr := serve(t, b, Options{Token: secret})
	token := []string{tokenHeader, secret}
	b.generations["i w"] = 1
	relay := "/v1/sessions/" + (protocol.Context{Instance: "i", Workspace: "w", Generation: 1}).Runtime() + "-s/managed-process/ws"
	relayHeaders := append([]string{instanceHeader, "i", workspaceHeader, "w", generationHeader, "1"}, token...)

	for _, kv := range [][]string{
		with(), with(tokenHeader, ""), with(tokenHeader, secret[1:]), with(tokenHeader, secret+"x"), with(tokenHeader, strings.ToUpper(secret)),
		with(append(token, instanceHeader, "")...), with(append(token, instanceHeader, "-i")...), with(append(token, instanceHeader, "i/j")...),
		with(append(token, instanceHeader, "ï")...), with(append(token, instanceHeader, strings.Repeat("i", 129))...), token,
	} {
		wantStatus(t, addr, "/rpc/ws", 401, kv...)
	}
	wantStatus(t, addr, relay, 401, relayHeaders...) // no instance is pinned, and a relay pins none
	wantStatus(t, addr, "/rpc/ws", 400, append([]string{instanceHeader, "other"}, token...)...)
	wantStatus(t, addr, "/rpc/ws", 400, with(append(token, instanceHeader, "other", "Sec-WebSocket-Version", "12")...)...)
	wantStatus(t, addr, "/rpc/ws", 400, with(append(token, instanceHeader, "other", "Sec-WebSocket-Key", "x")...)...)
	if d.Instance() != "" {
		t.Fatalf("pinned to %q without an upgrade", d.Instance())
	}
	ws := dial(t, addr, true, tokenHeader, secret)
	send(t, ws, request(1, "__ping")) // the answer to an upgrade is sent before the instance is pinned
	recv(t, ws)
	if d.Instance() != "i" {
		t.Fatalf("pinned to %q", d.Instance())
	}
	wantStatus(t, addr, "/rpc/ws", 401, with(append(token, instanceHeader, "j")...)...)
	wantStatus(t, addr, "/rpc/ws", 101, with(append(token, instanceHeader, " i ")...)...)
	wantStatus(t, addr, relay, 400, relayHeaders...)
	for _, kv := range [][]string{
		{tokenHeader, ""}, {tokenHeader, "x"}, {instanceHeader, "j"}, {instanceHeader, ""},
		{workspaceHeader, ""}, {workspaceHeader, " "}, {workspaceHeader, "v"}, {workspaceHeader, strings.Repeat("w", 257)}, {workspaceHeader, "\xff"},
		{generationHeader, ""}, {generationHeader, "01"}, {generationHeader, "0"}, {generationHeader, "-1"}, {generationHeader, "+1"}, {generationHeader, "1.0"},
		{generationHeader, "2"}, {generationHeader, "99999999999999999999"}, {generationHeader, "one"},
	} {
		wantStatus(t, addr, relay, 401, append(relayHeaders, kv...)...)
	}
	b.mu.Lock()
	b.generations["i w"] = 2
	b.mu.Unlock()
	wantStatus(t, addr, relay, 401, relayHeaders...)                                // the generation has ended
	wantStatus(t, addr, relay, 401, append(relayHeaders, generationHeader, "2")...) // the session belongs to the old one
	if got := <-b.relays; got != "s default" || len(b.relays) != 0 {
		t.Errorf("got relay %q and %d more", got, len(b.relays))
	}
}

func TestTokenThatNobodyAskedFor(t *testing.T) {
	_, addr := serve(t, newBackend(nil), Options{})
	wantStatus(t, addr, "/rpc/ws", 101, with(tokenHeader, "whatever")...)
}

func TestConfiguredInstance(t *testing.T) {
	b := newBackend(nil)
	b.generations["mine w"] = 1
	d, addr := serve(t, b, Options{Instance: "mine"})
	wantStatus(t, addr, "/rpc/ws", 401, with()...)
	relay := "/v1/sessions/" + (protocol.Context{Instance: "mine", Workspace: "w", Generation: 1}).Runtime() + "-s/managed-process/p/ws"
	wantStatus(t, addr, relay, 400, instanceHeader, "mine", workspaceHeader, "w", generationHeader, "1") // the instance is pinned from the start
	wantStatus(t, addr, "/rpc/ws", 101, with(instanceHeader, "mine")...)
	if d.Instance() != "mine" {
		t.Error(d.Instance())
	}
}

func TestInstancePerConnection(t *testing.T) {
	instances := make(chan string, 2)
	b := newBackend(nil)
	d, addr := serve(t, b, Options{PerConnection: true})
	for _, name := range []string{"a", "b"} {
		ws := dial(t, addr, false, instanceHeader, name)
		send(t, ws, request(1, "x"))
		recv(t, ws)
		ws.Close()
		instances <- (<-b.over).Instance()
	}
	if a, b := <-instances, <-instances; a != "a" || b != "b" || d.Instance() != "" {
		t.Errorf("got %q, %q, and pinned %q", a, b, d.Instance())
	}
	b.generations["c w"] = 3
	c := protocol.Context{Instance: "c", Workspace: "w", Generation: 3}
	wantStatus(t, addr, "/v1/sessions/"+c.Runtime()+"-s/managed-process/p/ws", 400, instanceHeader, "c", workspaceHeader, "w", generationHeader, "3")
}

// TestFirstOfMany lets two instances race for the pin.
func TestFirstOfMany(t *testing.T) {
	for range 10 {
		d, addr := serve(t, newBackend(nil), Options{})
		var mu sync.Mutex
		in := map[string]int{}
		var wg sync.WaitGroup
		for i := range 8 {
			name := []string{"a", "b"}[i%2]
			wg.Go(func() {
				ws, _, err := websocket.DefaultDialer.Dial("ws://"+addr+"/rpc/ws", headers(instanceHeader, name))
				if err == nil {
					defer ws.Close()
					mu.Lock()
					in[name]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if len(in) != 1 || in[d.Instance()] != 4 {
			t.Fatalf("got in: %v, pinned: %q", in, d.Instance())
		}
	}
}

func TestRelayNames(t *testing.T) {
	b := newBackend(nil)
	_, addr := serve(t, b, Options{Instance: "i"})
	b.generations["i ẅ"] = 12
	c := protocol.Context{Instance: "i", Workspace: "ẅ", Generation: 12}
	for path, want := range map[string]string{
		"s/managed-process/ws":                  "s default",
		"s/managed-process/p/ws":                "s p",
		"a.b_C-1/managed-process/%C3%A9%20x/ws": "a.b_C-1 é x",
		"s/managed-process/a%2Fb/ws":            "s a/b",
		"s/managed-process/../ws":               "s ..",
		"s/managed-process/100%25/ws":           "s 100%",
	} {
		wantStatus(t, addr, "/v1/sessions/"+c.Runtime()+"-"+path, 400, instanceHeader, "i", workspaceHeader, " ẅ ", generationHeader, "12")
		if got := <-b.relays; got != want {
			t.Errorf("%s: got %q", path, got)
		}
	}
}

func TestTooManyConnections(t *testing.T) {
	b := newBackend(nil)
	_, addr := serve(t, b, Options{MaxConnections: 2})
	first := dial(t, addr, false)
	dial(t, addr, false)
	wantStatus(t, addr, "/rpc/ws", 503, with()...)
	first.Close()
	<-b.over
	for { // the slot is freed just after Closed
		ws, resp, err := websocket.DefaultDialer.Dial("ws://"+addr+"/rpc/ws", headers(instanceHeader, "i"))
		if err == nil {
			ws.Close()
			return
		}
		if resp == nil || resp.StatusCode != 503 {
			t.Fatal(err)
		}
	}
}

// TestTooManyRelays: relays count as connections, and Close does not wait for them.
func TestTooManyRelays(t *testing.T) {
	b := newBackend(nil)
	b.generations["i w"] = 1
	b.hold = make(chan struct{})
	d, addr := serve(t, b, Options{MaxConnections: 2, Instance: "i"})
	relay := "/v1/sessions/" + (protocol.Context{Instance: "i", Workspace: "w", Generation: 1}).Runtime() + "-s/managed-process/ws"
	kv := []string{instanceHeader, "i", workspaceHeader, "w", generationHeader, "1"}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { wantStatus(t, addr, relay, 400, kv...) })
		<-b.relays
	}
	wantStatus(t, addr, relay, 503, kv...)
	wantStatus(t, addr, "/rpc/ws", 503, with()...)
	d.Close(websocket.CloseGoingAway, stopReason)
	close(b.hold)
	wg.Wait()
}

// TestOffers checks the answers to offers of compression.
func TestOffers(t *testing.T) {
	_, addr := serve(t, newBackend(nil), Options{})
	for offer, want := range map[string]string{
		"permessage-deflate; client_max_window_bits":    "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
		"x-other, permessage-deflate":                   "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
		"permessage-deflate; server_max_window_bits=10": "", // accepting it would limit our compression
		"x-other": "",
		"":        "",
	} {
		_, _, h := get(t, addr, "/rpc/ws", with("Sec-WebSocket-Extensions", offer)...)
		if got := h.Get("Sec-WebSocket-Extensions"); got != want {
			t.Errorf("%q: got %q", offer, got)
		}
	}
}

var (
	instancePattern   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)
	generationPattern = regexp.MustCompile(`^[1-9][0-9]*$`)
)

func FuzzHeaders(f *testing.F) {
	f.Add("i", "w", "1")
	f.Add("a.b:c_d-e", "\u3000ü\x1f", "9223372036854775808")
	f.Add("i\n", "\xff", "01")
	f.Fuzz(func(t *testing.T, instance, workspace, generation string) {
		if got, want := isInstance(instance), instancePattern.MatchString(instance) && !strings.HasSuffix(instance, "\n"); got != want {
			t.Fatalf("instance %q: %v", instance, got)
		}
		h := http.Header{workspaceHeader: {workspace}, http.CanonicalHeaderKey(generationHeader): {generation}}
		h.Set(workspaceHeader, workspace)
		c, ok := relayContext(h, instance)
		name := protocol.Trim(workspace)
		n := utf8.RuneCountInString(name)
		want := utf8.ValidString(name) && n >= 1 && n <= 256 && generationPattern.MatchString(generation) &&
			(len(generation) < 19 || len(generation) == 19 && generation <= "9223372036854775807")
		if ok != want {
			t.Fatalf("%q, %q: %v", workspace, generation, ok)
		}
		if ok && (c.Workspace != name || fmt.Sprint(c.Generation) != generation) {
			t.Fatalf("got %+v", c)
		}
	})
}
