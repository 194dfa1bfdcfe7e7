package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
)

// bridged is a bridge to a daemon that answers as the test says, and the program's ends of its streams.
type bridged struct {
	t       *testing.T
	in      *io.PipeWriter
	out     *bufio.Scanner
	closing io.Closer
	done    chan error
	posts   chan string // what the daemon has got: method, session, revision and body
}

func bridgeTo(t *testing.T, daemon func(got string, w http.ResponseWriter, r *http.Request)) *bridged {
	t.Helper()
	b := &bridged{t: t, done: make(chan error, 1), posts: make(chan string, 100)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/mcp/notes" || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
		}
		got := strings.Join([]string{r.Method, r.Header.Get("Mcp-Session-Id"), r.Header.Get("Mcp-Protocol-Version"), string(body)}, " ")
		b.posts <- got
		daemon(got, w, r)
	}))
	t.Cleanup(server.Close)
	c, err := client.New(client.Options{URL: server.URL, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	fromProgram, in := io.Pipe()
	fromBridge, out := io.Pipe()
	b.in, b.out, b.closing = in, bufio.NewScanner(fromBridge), fromBridge
	go func() {
		b.done <- Bridge(t.Context(), BridgeOptions{Server: "notes", Client: c, In: fromProgram, Out: out, Logger: slog.New(slog.DiscardHandler)})
		out.Close()
	}()
	return b
}

func (b *bridged) send(line string) {
	b.t.Helper()
	if _, err := io.WriteString(b.in, line+"\n"); err != nil {
		b.t.Fatal(err)
	}
}

// want reads a line of the bridge, which must have the parts.
func (b *bridged) want(parts ...string) {
	b.t.Helper()
	if !b.out.Scan() {
		b.t.Fatalf("the output ended before %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(b.out.Text(), p) {
			b.t.Errorf("%s: want it to have %q", b.out.Text(), p)
		}
	}
}

// wantGot waits for a request of the bridge that begins so.
func (b *bridged) wantGot(prefix string) {
	b.t.Helper()
	for {
		select {
		case got := <-b.posts:
			if strings.HasPrefix(got, prefix) {
				return
			}
		case <-time.After(testutil.Patience()):
			b.t.Fatalf("the daemon did not get %s", prefix)
		}
	}
}

// hello answers initialize with a session.
func hello(w http.ResponseWriter, id, session string) {
	w.Header().Set("Mcp-Session-Id", session)
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25"}}`, id)
}

const hello1 = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`

// A program is answered whatever the daemon does: events, refusals, sessions that have ended, answers that are cut off.
func TestBridge(t *testing.T) {
	sessions := 0
	asked := make(chan struct{})
	b := bridgeTo(t, func(got string, w http.ResponseWriter, r *http.Request) {
		events := func(lines ...string) {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, l := range lines {
				fmt.Fprintf(w, ": \n\nevent: message\ndata: %s\n\n", l)
			}
			http.NewResponseController(w).Flush()
		}
		gone := func() {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":"session not found"}}`, codeSession)
		}
		switch {
		case strings.Contains(got, `"initialize"`):
			sessions++
			hello(w, "1", fmt.Sprintf("s%d", sessions))
		case r.Method == http.MethodGet && strings.Contains(got, "s1"):
			events(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
			close(asked)
			<-r.Context().Done()
		case r.Method == http.MethodGet:
			<-r.Context().Done()
		case strings.Contains(got, `"progress"`):
			events(`{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`, `{"jsonrpc":"2.0","id":"p","result":{"x":"<\u2028>"}}`)
		case strings.Contains(got, `"broken"`):
			events(`{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`)
		case strings.Contains(got, `"proxy"`):
			w.WriteHeader(http.StatusBadGateway)
			io.WriteString(w, "<html>")
		case strings.Contains(got, `"refused"`):
			w.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"too many","data":{"a":1}}}`)
		case strings.Contains(got, "POST s1") && strings.Contains(got, `"idle"`):
			gone()
		case strings.Contains(got, `"idle"`):
			events(`{"jsonrpc":"2.0","id":9,"result":{}}`)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
	b.send(hello1)
	b.want(`"id":1`, "2025-11-25")
	b.wantGot("POST   " + `{"id":1`)
	b.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	b.wantGot(`POST s1 2025-11-25 {"jsonrpc":"2.0","method":"notifications/initialized"}`)
	<-asked
	b.want(`"roots/list"`)
	b.send(`{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}`)
	b.wantGot(`POST s1 2025-11-25 {"id":"q"`)
	b.send(`{"jsonrpc":"2.0","id":"p","method":"progress"}`)
	b.want(`notifications/progress`)
	b.want(`"id":"p"`, `"x":"`)
	b.send(`{"jsonrpc":"2.0","id":"b","method":"broken"}`)
	b.want(`notifications/progress`)
	b.want(`"id":"b"`, `"phase":"lost"`, "ended before the answer")
	b.send(`{"jsonrpc":"2.0","id":3,"method":"proxy"}`)
	b.want(`"id":3`, "502 Bad Gateway")
	b.send(`{"jsonrpc":"2.0","id":4,"method":"refused"}`)
	b.want(`"id":4`, `"too many"`, `"data":{"a":1}`)
	b.send(`{"jsonrpc":`)
	b.want(`"id":null`, "-32700")
	b.send(`{"jsonrpc":"2.0","id":9,"method":"idle"}`)
	b.want(`"id":9`, `"result":{}`) // and no second answer to initialize before
	b.wantGot("POST   " + `{"id":1`)
	b.wantGot(`POST s2 2025-11-25 {"jsonrpc":"2.0","method":"notifications/initialized"}`)
	b.wantGot(`POST s2 2025-11-25 {"id":9`)
	// A revision without sessions says its name in each message.
	b.send(`{"jsonrpc":"2.0","id":"p","method":"progress","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`)
	b.want(`notifications/progress`)
	b.want(`"id":"p"`)
	b.wantGot(`POST  2026-07-28 {"id":"p"`)
	b.in.Close()
	if err := <-b.done; err != nil {
		t.Error(err)
	}
	b.wantGot("DELETE s2")
	if b.out.Scan() {
		t.Errorf("more output: %s", b.out.Text())
	}
}

// A call that is cancelled ends at the daemon and gets no response, with and without a session; so does one whose program is gone.
func TestBridgeCancelled(t *testing.T) {
	begun, ended := make(chan string, 3), make(chan string, 3)
	b := bridgeTo(t, func(got string, w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(got, `"initialize"`):
			hello(w, "1", "s1")
		case r.Method == http.MethodGet:
			<-r.Context().Done()
		case strings.Contains(got, `"wait"`):
			begun <- got
			<-r.Context().Done()
			ended <- got
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
	b.send(hello1)
	b.want(`"id":1`)
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"enough","requestId":7}}`
	for _, meta := range []string{"", `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`} {
		b.send(`{"jsonrpc":"2.0","id":7,"method":"wait","params":{` + meta + `}}`)
		<-begun
		b.send(cancel)
		<-ended
		if meta == "" {
			b.wantGot("POST s1 2025-11-25 " + cancel)
		}
	}
	b.send(cancel) // it comes too late
	b.send(`{"jsonrpc":"2.0","id":8,"method":"wait"}`)
	<-begun
	b.in.Close()
	<-ended
	if err := <-b.done; err != nil {
		t.Error(err)
	}
	b.wantGot("DELETE s1")
	if b.out.Scan() {
		t.Errorf("more output: %s", b.out.Text())
	}
}

// The bridge ends with an error if nobody reads what it writes.
func TestBridgeOutput(t *testing.T) {
	b := bridgeTo(t, func(_ string, w http.ResponseWriter, _ *http.Request) { hello(w, "1", "") })
	b.closing.Close()
	b.send(hello1)
	if err := <-b.done; !errors.Is(err, errOutput) || !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	b.in.Close()
}

func TestCheckServer(t *testing.T) {
	g := New(Options{Servers: []Server{{Name: "b"}, {Name: "a"}, {Name: "other", Tenants: []string{"else"}}}, Caller: func(r *http.Request) (Caller, error) {
		return Caller{Tenant: r.Header.Get("X-Boxd-Tenant")}, nil
	}})
	defer g.Close()
	for _, c := range []struct {
		door         http.Handler
		server, want string
	}{
		{http.StripPrefix("/mcp", g), "x", `there is no server "x": mcp_servers of the daemon's configuration has a, b`},
		{http.StripPrefix("/mcp", g), "other", `there is no server "other": mcp_servers of the daemon's configuration has a, b`},
		{http.StripPrefix("/mcp", g), "a", ""},
		{http.NotFoundHandler(), "x", `there is no server "x": the daemon has no MCP servers; mcp_servers of its configuration names them`},
		{http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }), "x", `asking for the server "x": the daemon answers 502 Bad Gateway`},
	} {
		server := httptest.NewServer(c.door)
		o, err := client.New(client.Options{URL: server.URL, Tenant: "t"})
		if err != nil {
			t.Fatal(err)
		}
		err = CheckServer(t.Context(), o, c.server)
		if got := fmt.Sprint(err); got != c.want && (err != nil || c.want != "") {
			t.Errorf("%s: %q, want %q", c.server, got, c.want)
		}
		o.Close()
		server.Close()
	}
}
