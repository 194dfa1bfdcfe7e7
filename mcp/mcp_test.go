package mcp

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/budget"
	"github.com/boxd/boxd/policy"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The ID of a session is unique for caller and program, valid, and a part of a host name.
func TestVariables(t *testing.T) {
	seen := map[string]string{}
	for _, actor := range []string{"token:ci", "token:ci-a", "token:CI", "uid:0", "uid:0 /a", "cert:acme", "token:" + strings.Repeat("x", 500), "token:日本"} {
		for _, name := range []string{"", "a", "claude-ai", "-", "a\x00b", "Claude Code", strings.Repeat("y", 300), "日本"} {
			vars := variables(actor, actor, "", &sdk.Implementation{Name: name, Version: "1"})
			id, err := policy.ScopeID(DefaultScope, vars, true)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.HasPrefix(id, "-") || len(id) > 57 || policy.ValidateSessionID(id) != nil {
				t.Errorf("%q %q: %q", actor, name, id)
			}
			if other, ok := seen[id]; ok {
				t.Errorf("%q is of %q and of %q", id, other, actor+" "+name)
			}
			seen[id] = actor + " " + name
		}
	}
	if a, b := variables("a", "a", "", nil), variables("a", "a", "", &sdk.Implementation{Name: "unknown"}); a["caller"] != b["caller"] || a["client"] != "" {
		t.Errorf("%v %v", a, b)
	}
	if a, b := variables("token:ci", "token:1", "", nil), variables("token:ci", "token:2", "", nil); a["caller"] == b["caller"] {
		t.Errorf("two tokens of one name have the caller %q", a["caller"])
	}
	if got := variables("a", "a", "s", nil)["mcp_session"]; got != "s" {
		t.Errorf("mcp_session: %q", got)
	}
}

// The instructions say what the profile gives.
func TestInstructions(t *testing.T) {
	p := apitypes.Profile{Name: "p", Languages: []apitypes.Language{{Name: "bash"}, {Name: "python"}}}
	p.Image, p.WorkspaceMode, p.Memory, p.CPUs, p.PIDs, p.TmpSize = "host", spec.ReadWrite, 256<<20, 0.5, 64, 16<<20
	p.Timeout, p.Caps.Timeout, p.IdleTTL = spec.Duration(30*time.Second), spec.Duration(time.Minute), spec.Duration(5*time.Minute)
	says := func(change func(*apitypes.Profile), want ...string) {
		t.Helper()
		q := p
		if change != nil {
			change(&q)
		}
		text := (&tools{profile: q}).instructions()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%q is missing in\n%s", w, text)
			}
		}
	}
	says(nil, "the host's /usr, read-only.\nUser: uid 0 of the box, without capabilities", "bash, python", "/workspace", "256 MiB", "0.5 processors", "64 processes", "take 30s", "at most 1m0s", "Network: none", "deleted after 5m0s")
	says(func(p *apitypes.Profile) { p.Image = "docker.io/library/python:3.12" }, "the image docker.io/library/python:3.12.\nUser: the one that the image names")
	says(func(p *apitypes.Profile) { p.WorkspaceMode = spec.None }, "no writable working directory")
	says(func(p *apitypes.Profile) { p.Memory, p.CPUs, p.PIDs, p.Caps.Timeout = -1, -1, -1, -1 }, "unlimited", "all processors", "any number of", "as long as it wants")
	says(func(p *apitypes.Profile) { p.Network, p.NetworkRules.Public = true, true }, "public addresses")
	says(func(p *apitypes.Profile) { p.Network, p.NetworkRules.Allow = true, []string{"pypi.org"} }, "only to pypi.org")
	says(func(p *apitypes.Profile) { p.Network = true }, "allows nothing")
	says(func(p *apitypes.Profile) { p.Persistent = true }, "stays between calls.")
	says(func(p *apitypes.Profile) { p.Retain = "7d" }, "stays for 7d")
	says(func(p *apitypes.Profile) { p.Retain = "forever" }, "the working directory stays.")
}

func TestWholeCharacters(t *testing.T) {
	text := "aé日😀z"
	for n := range len(text) + 1 {
		if got := wholeCharacters([]byte(text[:n])); !utf8.Valid(got) && n > 3 || len(got) > n || n-len(got) > 3 {
			t.Errorf("of %q: %q", text[:n], got)
		}
	}
	for _, b := range []string{"", "\xff", "a\xff\xfe\xfd\xfc", "\x80\x80\x80\x80"} {
		if got := wholeCharacters([]byte(b)); string(got) != b {
			t.Errorf("%q became %q", b, got)
		}
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{"": "", "aé日😀": "aé日😀", "a\xffb": `a\xffb`, "\xe6\x97 \x00": "\\xe6\\x97 \x00", "\uFFFD": "\uFFFD"} {
		got, bad := plain([]byte(in))
		if got != want || bad != strings.Count(want, `\x`) {
			t.Errorf("%q became %q with %d bytes, want %q", in, got, bad, want)
		}
	}
}

// Errors of the SDK become errors of JSON-RPC; its messages pass.
func TestAnswer(t *testing.T) {
	for _, c := range []struct {
		status           int
		kind, text, want string
	}{
		{400, "text/plain; charset=utf-8", "Bad Request: x\n", `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Bad Request: x"}}`},
		{404, "", "session not found", `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"session not found"}}`},
		{500, "text/plain", "x", `{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"x"}}`},
		{405, "text/plain", strings.Repeat("y", 100_000), `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"` + strings.Repeat("y", 4096) + `"}}`},
		{400, "application/json", `{"own":1}`, `{"own":1}`},
		{200, "text/event-stream", "data: x\n\n", "data: x\n\n"},
	} {
		w := httptest.NewRecorder()
		a := &answer{ResponseWriter: w}
		a.Header().Set("Content-Type", c.kind)
		a.WriteHeader(c.status)
		if n, err := a.Write([]byte(c.text)); n != len(c.text) || err != nil {
			t.Errorf("%d %v", n, err)
		}
		a.Flush()
		a.end()
		if w.Code != c.status || w.Body.String() != c.want {
			t.Errorf("%d: %d %.200s, want %.200s", c.status, w.Code, w.Body, c.want)
		}
		if c.status >= 400 && w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%d: %s", c.status, w.Header())
		}
	}
}

func TestSameOrigin(t *testing.T) {
	for header, ok := range map[string]bool{
		"": true, "Origin: http://boxd.example": true, "Origin: https://BOXD.example": true, "Origin: http://boxd.example:81": false, "Origin: http://evil.example": false,
		"Origin: null": false, "Origin: http://": false, "Origin: %": false, "Sec-Fetch-Site: same-origin": true, "Sec-Fetch-Site: none": true, "Sec-Fetch-Site: same-site": false,
		"Sec-Fetch-Site: cross-site": false, "Sec-Fetch-Site: x": false,
	} {
		r := httptest.NewRequest("POST", "http://boxd.example/mcp", nil)
		if name, value, found := strings.Cut(header, ": "); found {
			r.Header.Set(name, value)
		}
		if err := SameOrigin(r); (err == nil) != ok {
			t.Errorf("%s: %v", header, err)
		}
	}
}

// What answers hold of resources is bounded, each tenant for itself, and given back when the answer was sent.
func TestResourceBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(heldResources, tenantResources)
		of := func(tenant string) *request { return &request{caller: Caller{Tenant: tenant}, resources: b} }
		first := of("a")
		for range tenantResources / maxResource {
			if err := first.hold(t.Context(), maxResource); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if err := of("a").hold(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "the tenant's other requests") || time.Since(began) != resourcePatience {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if err := of("b").hold(t.Context(), maxResource); err != nil {
			t.Errorf("another tenant: %v", err)
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		if err := of("a").hold(gone, 1); err == nil {
			t.Error("a client that has gone gets some")
		}
		waiting := of("a")
		waited := make(chan error, 1)
		go func() { waited <- waiting.hold(t.Context(), maxResource) }()
		synctest.Wait()
		first.end()
		if err := <-waited; err != nil || b.Held() != 2*maxResource {
			t.Errorf("%v, %d are held", err, b.Held())
		}
		if err := first.hold(t.Context(), 1); err == nil || b.Held() != 2*maxResource {
			t.Errorf("an answer that was sent holds %d, %v", b.Held(), err)
		}
	})
}

// The bounds of the sessions of the protocol hold, and requests in progress keep theirs.
func TestLegacySessions(t *testing.T) {
	l := newLegacySessions()
	server := newServer(Options{}, apitypes.Profile{}, callerOf)
	of := func(tenant, actor string) *request {
		return &request{caller: Caller{Tenant: tenant, Actor: "token:ci", Key: actor}, server: server}
	}
	name := func(i int) string { return "s" + string(rune('a'+i/26)) + string(rune('a'+i%26)) }
	a := of("a", "one")
	for i := range maxLegacyEach {
		if !l.add(name(i), a) {
			t.Fatalf("session %d is refused", i)
		}
	}
	if l.add("more", a) || l.use("more", a) {
		t.Error("a session beyond the bound, although all have requests in progress")
	}
	if !l.add("other", of("b", "one")) {
		t.Error("another tenant gets none")
	}
	l.release(name(3), false)
	if !l.add("more", a) || l.use(name(3), a) {
		t.Error("a session that is not used is not replaced")
	}
	l.release("more", true)
	if l.use("more", a) {
		t.Error("a session that has ended is there")
	}
	for _, stranger := range []*request{of("b", "one"), of("a", "two")} {
		if l.use(name(4), stranger) {
			t.Errorf("%+v has a session of a", stranger.caller)
		}
	}
	l.release("unknown", false)
	l.closeAll()
	if len(l.byID) != 0 || len(l.each) != 0 || l.use(name(4), a) {
		t.Error("sessions after closeAll")
	}
}

// A client that sends its request slowly is refused, as are bodies that never end.
func TestSlowClient(t *testing.T) {
	d := NewDoor(DoorOptions{Caller: func(*http.Request) (Caller, error) { return Caller{Tenant: "a"}, nil }})
	defer d.Close()
	d.bodyTimeout = 50 * time.Millisecond
	s := httptest.NewServer(d)
	defer s.Close()
	resp, err := http.Post(s.URL, "application/json", &slowly{})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var f struct{ Error struct{ Message string } }
	if err := json.NewDecoder(resp.Body).Decode(&f); err != nil || resp.StatusCode != 408 || !strings.Contains(f.Error.Message, "within 50ms") {
		t.Errorf("slow: %s %+v %v", resp.Status, f, err)
	}
	r := httptest.NewRequest("POST", "/mcp", endless{})
	r.ContentLength = -1 // as of a body in chunks
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil || w.Code != 413 || !strings.Contains(f.Error.Message, "4194304") {
		t.Errorf("endless: %d %s %v", w.Code, w.Body, err)
	}
}

// slowly sends a byte and then nothing more, until its reader gives up.
type slowly struct{ sent bool }

func (s *slowly) Read(p []byte) (int, error) {
	if s.sent {
		time.Sleep(300 * time.Millisecond) // longer than the door waits; then the transport has the answer
		return 0, io.EOF
	}
	s.sent = true
	return copy(p, "{"), nil
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// A door without a caller answers nobody.
func TestDoorRefuses(t *testing.T) {
	d := NewDoor(DoorOptions{Caller: func(*http.Request) (Caller, error) { return Caller{}, http.ErrNoCookie }})
	defer d.Close()
	w := httptest.NewRecorder()
	d.ServeHTTP(w, httptest.NewRequest("POST", "/mcp", strings.NewReader("{}")))
	var f struct{ Error struct{ Message string } }
	if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil || w.Code != 403 || f.Error.Message != http.ErrNoCookie.Error() {
		t.Errorf("%d %s %v", w.Code, w.Body, err)
	}
}

// The annotations of tools that run something follow the network of new sessions.
func TestOpenWorld(t *testing.T) {
	for _, network := range []bool{false, true} {
		p := apitypes.Profile{}
		p.Network = network
		s := newServer(Options{SessionTool: true, Previews: true}, p, callerOf)
		ct, st := sdk.NewInMemoryTransports()
		ss, err := s.Connect(t.Context(), st, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := sdk.NewClient(&sdk.Implementation{Name: "t", Version: "1"}, nil).Connect(t.Context(), ct, nil)
		if err != nil {
			t.Fatal(err)
		}
		list, err := c.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			runs := tool.Name == "exec" || tool.Name == "start_process" || tool.Name == "process_input"
			if want := runs && network || tool.Name == "preview"; *tool.Annotations.OpenWorldHint != want {
				t.Errorf("%s with network %v: open world %v", tool.Name, network, !want)
			}
		}
		if res, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "list_files", Arguments: map[string]any{}}); err != nil || !res.IsError {
			t.Errorf("without a caller: %v %v", res, err)
		}
		c.Close()
		ss.Wait()
	}
}
