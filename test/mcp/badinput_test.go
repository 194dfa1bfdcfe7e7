package mcp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

const (
	list    = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`
	newList = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
)

// Whoever may not get in does not, and is told so in the protocol's form.
func TestAdmission(t *testing.T) {
	s := start(t, "")
	for name, c := range map[string]struct {
		token  string
		header []string
		status int
		says   string
	}{
		"no token":          {"", nil, 401, "no credentials"},
		"a wrong token":     {strings.Repeat("x", 30), nil, 401, "unknown bearer token"},
		"a viewer":          {tokenRead, nil, 403, "role viewer may not use this"},
		"another tenant":    {tokenA, []string{"X-Boxd-Tenant", "b"}, 403, "only administrators choose a tenant"},
		"a foreign page":    {tokenA, []string{"Origin", "https://evil.example"}, 403, "another site"},
		"a page of a file":  {tokenA, []string{"Origin", "null"}, 403, "another site"},
		"an image of it":    {tokenA, []string{"Sec-Fetch-Site", "cross-site"}, 403, "another site"},
		"an old session":    {tokenA, []string{"Mcp-Session-Id", "x"}, 200, ""},  // initialize begins anew
		"a foreign host":    {tokenA, []string{"Host", "boxd.example"}, 200, ""}, // as behind a proxy: the token counts
		"the page of a UI":  {tokenA, []string{"Origin", s.url, "Sec-Fetch-Site", "same-origin"}, 200, ""},
		"a second token of": {tokenA2, nil, 200, ""},
	} {
		status, body, header := s.post(t, c.token, initialize(1), c.header...)
		if c.status == 200 {
			if status != 200 {
				t.Errorf("%s: %d %s", name, status, body)
			}
			continue
		}
		f := wantFailure(t, name, status, c.status, body, c.says)
		if (c.status == 401) != strings.HasPrefix(header.Get("WWW-Authenticate"), "Bearer ") {
			t.Errorf("%s: WWW-Authenticate %q", name, header.Get("WWW-Authenticate"))
		}
		if c.status == 401 && !strings.Contains(string(f.Error.Data), `"code":"unauthenticated"`) {
			t.Errorf("%s: data %s", name, f.Error.Data)
		}
	}
	if got := s.sessions(t, "*"); len(got) != 0 {
		t.Errorf("sessions were made: %q", got)
	}

	// A session of the protocol belongs to its caller.
	_, _, header := s.post(t, tokenA, initialize(1))
	id := header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatal("no session of the protocol")
	}
	_, unknown, _ := s.post(t, tokenB, list, "Mcp-Session-Id", "unknown")
	for name, token := range map[string]string{"another tenant": tokenB, "another token": tokenA2} {
		status, body, _ := s.post(t, token, list, "Mcp-Session-Id", id)
		if wantFailure(t, name, status, 404, body, "session not found"); string(body) != string(unknown) {
			t.Errorf("%s: %s, for an unknown one %s", name, body, unknown)
		}
	}
	if status, body, _ := s.post(t, tokenA, list, "Mcp-Session-Id", id); status != 200 {
		t.Errorf("its own session: %d %s", status, body)
	}
	r, err := http.NewRequestWithContext(t.Context(), "DELETE", s.url+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Authorization": {"Bearer " + tokenA}, "Mcp-Session-Id": {id}}
	resp, err := http.DefaultClient.Do(r)
	if err != nil || resp.StatusCode != 204 {
		t.Fatalf("ending it: %v %v", resp, err)
	}
	resp.Body.Close()
	status, body, _ := s.post(t, tokenA, list, "Mcp-Session-Id", id)
	wantFailure(t, "a session that was ended", status, 404, body, "session not found")

	// A request counts once, with what its tool asks of the API.
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec","arguments":{"command":"true"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	for i := range 4 {
		status, body, header := s.post(t, tokenSlow, call, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "exec")
		if i < 3 {
			if status != 200 || !strings.Contains(string(body), "exit code 0") {
				t.Errorf("call %d: %d %s", i, status, body)
			}
			continue
		}
		wantFailure(t, "a token over its rate", status, 429, body, "requests")
		if header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
}

// Without tokens, no page of another site gets in by a host name that points here.
func TestRebinding(t *testing.T) {
	testutil.RequireRoot(t)
	d, c := daemon.ForTest(t, daemon.Config{Dir: testutil.ReachableDir(t, ""), Args: []string{"--listen", "127.0.0.1:0"}})
	s := &server{Daemon: d, client: c, url: "http://" + addressOf(t, d)}
	for _, header := range [][]string{{"Host", "evil.example"}, {"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
		status, body, _ := s.post(t, "", initialize(1), header...)
		wantFailure(t, strings.Join(header, ": "), status, 403, body, "")
	}
	if status, body, _ := s.post(t, "", initialize(1)); status != 200 {
		t.Errorf("a program of this host: %d %s", status, body)
	}
}

// Nonsense is refused in the protocol's form, and harms nobody.
func TestMalformed(t *testing.T) {
	s := start(t, "")
	_, _, header := s.post(t, tokenA, initialize(1))
	id := header.Get("Mcp-Session-Id")
	before := s.descriptors(t)
	huge := strings.Repeat("x", 5<<20)
	deep := strings.Repeat(`[`, 200_000)
	for name, c := range map[string]struct {
		body   string
		header []string
		status int
	}{
		"nothing":               {"", nil, 400},
		"no JSON":               {"{", nil, 400},
		"a number":              {"1", nil, 400},
		"an empty batch":        {"[]", nil, 400},
		"another version":       {`{"jsonrpc":"1.0","id":1,"method":"ping"}`, nil, 400},
		"an ID that is a list":  {`{"jsonrpc":"2.0","id":[1],"method":"ping"}`, nil, 400},
		"bytes":                 {"\x00\xff\xfe", nil, 400},
		"depth":                 {deep, nil, 400},
		"a huge body":           {huge, nil, 413},
		"an unknown revision":   {list, []string{"Mcp-Protocol-Version", "2023-01-01"}, 400},
		"a revision of nothing": {list, []string{"Mcp-Protocol-Version", "abc"}, 400},
		"a future revision":     {newList, []string{"Mcp-Protocol-Version", "2099-01-01"}, 400},
		"a revision in a lie":   {newList, []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call"}, 400},
		"the new one, no meta":  {list, []string{"Mcp-Protocol-Version", "2026-07-28"}, 400},
		"another content type":  {list, []string{"Content-Type", "text/plain"}, 415},
		"another accept":        {list, []string{"Accept", "text/html"}, 400},
	} {
		for _, session := range []string{"", id} {
			header := c.header
			if session != "" {
				header = append([]string{"Mcp-Session-Id", session}, header...)
			}
			status, body, _ := s.post(t, tokenA, c.body, header...)
			if status != 200 || !strings.Contains(string(body), `"error"`) { // some are answered as the request that they are
				wantFailure(t, name, status, c.status, body, "")
			}
		}
	}
	for _, method := range []string{"GET", "DELETE", "PUT", "OPTIONS"} {
		r, err := http.NewRequestWithContext(t.Context(), method, s.url+"/mcp", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Authorization": {"Bearer " + tokenA}, "Accept": {"text/event-stream"}}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if f := (failure{}); resp.StatusCode < 400 || json.Unmarshal(body, &f) != nil || f.Error == nil {
			t.Errorf("%s: %s %s", method, resp.Status, body)
		}
	}
	c := s.connect(t, tokenA, "", nil)
	for tool, in := range map[string]any{
		"exec": args{}, "run_code": args{"language": "none", "code": "1"}, "start_process": args{"process": "../x", "command": "true"},
		"process_output": args{"process": "none"}, "process_input": args{"process": "none", "text": "x"}, "stop_process": args{"process": "none"},
		"read_file": args{"path": ""}, "write_file": args{"path": "\x00", "content": "x"}, "edit_file": args{"path": "none", "old": "a", "new": "b"},
		"list_files": args{"path": "none"},
	} {
		if res := try(t, c, tool, in); !res.IsError || textOf(res) == "" {
			t.Errorf("%s %v: %s", tool, in, textOf(res))
		}
	}
	for _, in := range []any{args{"command": 1}, args{"command": "true", "timeout_seconds": -1}, args{"command": "true", "timeout_seconds": 1e300}, args{"unknown": true}, []int{1}, "x", nil} {
		if res, err := c.CallTool(t.Context(), callParams("exec", in)); err == nil && !res.IsError {
			t.Errorf("exec %v: %s", in, textOf(res))
		}
	}
	call(t, c, "exec", args{"command": "true"}, nil)
	c.Close()
	s.settle(t, before)
}

// descriptors is how many descriptors the daemon has open.
func (s *server) descriptors(t *testing.T) int {
	t.Helper()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// settle waits until the daemon has no more descriptors open than before, but for the two or three of
// each box.
func (s *server) settle(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(testutil.Patience()); ; time.Sleep(20 * time.Millisecond) {
		now := s.descriptors(t)
		if now <= before+16 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the daemon has %d descriptors open, and had %d", now, before)
		}
	}
}

// Connections that are closed at any point of a request leave nothing behind.
func TestClosedAnywhere(t *testing.T) {
	s := start(t, "")
	c := s.connect(t, tokenA, "", nil)
	call(t, c, "exec", args{"command": "true"}, nil)
	before := s.descriptors(t)
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec","arguments":{"command":"sleep 4321"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"test-program","version":"1"}}}}`
	request := fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: exec\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s", tokenA, len(body), body)
	for at := 1; at <= len(request); at += 7 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, request[:at])
		conn.Close()
	}
	clients, each := 20, 5
	if testutil.Full() {
		clients, each = 200, 50
	}
	var working sync.WaitGroup
	for range clients {
		working.Go(func() {
			for i := range each { // when the command may run already
				conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(conn, request)
				time.Sleep(time.Duration(i%50) * time.Millisecond) // a client of its own pace, not an event
				conn.Close()
			}
		})
	}
	working.Wait()
	s.awaitExecs(t, 0)
	if n := sleepers(t, c); n != "0" {
		t.Errorf("%s processes have survived", n)
	}
	s.settle(t, before)
}

// Sessions of the protocol are bounded: the oldest one ends, and its client can begin anew.
func TestManySessions(t *testing.T) {
	s := start(t, "")
	_, _, header := s.post(t, tokenA, initialize(1))
	first := header.Get("Mcp-Session-Id")
	_, _, header = s.post(t, tokenB, initialize(1))
	other := header.Get("Mcp-Session-Id")
	for i := range 512 {
		if status, body, _ := s.post(t, tokenA, initialize(i)); status != 200 {
			t.Fatalf("session %d: %d %s", i, status, body)
		}
	}
	status, body, _ := s.post(t, tokenA, list, "Mcp-Session-Id", first)
	wantFailure(t, "the oldest session", status, 404, body, "session not found")
	status, body, header = s.post(t, tokenA, initialize(1), "Mcp-Session-Id", first)
	if again := header.Get("Mcp-Session-Id"); status != 200 || again == "" || again == first {
		t.Errorf("its client, which still sends its ID, begins anew: %d %s, session %q", status, body, again)
	}
	if status, body, _ := s.post(t, tokenB, list, "Mcp-Session-Id", other); status != 200 {
		t.Errorf("a session of another tenant: %d %s", status, body)
	}
}

// An open stream of a session does not keep the daemon from stopping.
func TestStop(t *testing.T) {
	s := start(t, "")
	_, _, header := s.post(t, tokenA, initialize(1))
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /mcp HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nMcp-Session-Id: %s\r\nAccept: text/event-stream\r\n\r\n", tokenA, header.Get("Mcp-Session-Id"))
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("%q %v", line, err)
	}
	began := time.Now()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("stopping took %s", took)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
}
