package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// Tokens of the daemons of these tests.
const (
	tokenA     = "aaaaaaaaaaaaaaaaaaaaaaaa" // operator of the tenant a
	tokenA2    = "aaaaaaaaaaaaaaaaaaaaaaa2" // another one of a, with a scope
	tokenB     = "bbbbbbbbbbbbbbbbbbbbbbbb" // operator of b
	tokenRead  = "rrrrrrrrrrrrrrrrrrrrrrrr" // viewer of a
	tokenSlow  = "ssssssssssssssssssssssss" // with a rate
	tokensFile = tokenA + " a operator one\n" + tokenA2 + " a operator two scope=by-{client}\n" + tokenB + " b operator one\n" + tokenRead + " a viewer\n" +
		tokenSlow + " slow operator slow requests=0.001 requests_burst=3\n"
)

// server is a daemon with a TCP listener.
type server struct {
	*daemon.Daemon
	client *client.Client // as administrator
	url    string         // of the daemon
	path   string         // empty: /mcp
}

// start runs a daemon with tokens and the configuration text.
func start(t *testing.T, text string) *server {
	t.Helper()
	testutil.RequireRoot(t)
	dir := testutil.ReachableDir(t, "")
	tokens, file := filepath.Join(dir, "tokens"), filepath.Join(dir, "boxd.yaml")
	for path, content := range map[string]string{tokens: tokensFile, file: text} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, c := daemon.ForTest(t, daemon.Config{Dir: dir, Args: []string{"--config", file, "--tokens-file", tokens, "--listen", "127.0.0.1:0"}})
	return &server{Daemon: d, client: c, url: "http://" + addressOf(t, d)}
}

// addressOf returns the TCP address of a daemon.
func addressOf(t *testing.T, d *daemon.Daemon) string {
	t.Helper()
	address, err := d.Address()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// bearer adds a token to requests.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func (s *server) endpoint() string { return s.url + cmp.Or(s.path, "/mcp") }

// connect returns a session of the protocol on HTTP; revision may be empty for the newest.
func (s *server) connect(t *testing.T, token, revision string, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	transport := &sdk.StreamableClientTransport{Endpoint: s.endpoint(), HTTPClient: &http.Client{Transport: bearer(token)}}
	return connect(t, transport, revision, o)
}

// stdio returns a session with "boxd mcp --stdio".
func (s *server) stdio(t *testing.T, revision string, o *sdk.ClientOptions, args ...string) *sdk.ClientSession {
	t.Helper()
	boxd, _ := testutil.BuildBinaries(t)
	cmd := exec.Command(boxd, append([]string{"mcp", "--stdio", "--socket", s.Socket()}, args...)...)
	cmd.Stderr = os.Stderr
	return connect(t, &sdk.CommandTransport{Command: cmd}, revision, o)
}

func connect(t *testing.T, transport sdk.Transport, revision string, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test-program", Version: "1"}, o).Connect(t.Context(), transport, &sdk.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// call calls a tool, which must not fail, and decodes its structured output into out, unless it is nil.
func call(t *testing.T, c *sdk.ClientSession, tool string, args any, out any) *sdk.CallToolResult {
	t.Helper()
	res := try(t, c, tool, args)
	if res.IsError {
		t.Fatalf("%s %v: %s", tool, args, textOf(res))
	}
	if out != nil {
		reflect.ValueOf(out).Elem().SetZero()
		b, err := json.Marshal(res.StructuredContent)
		if err == nil {
			err = json.Unmarshal(b, out)
		}
		if err != nil {
			t.Fatalf("%s: %v: %s", tool, err, b)
		}
	}
	return res
}

// try calls a tool.
func try(t *testing.T, c *sdk.ClientSession, tool string, args any) *sdk.CallToolResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience())
	defer cancel()
	res, err := c.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s %v: %v", tool, args, err)
	}
	return res
}

// textOf is the text of a result.
func textOf(r *sdk.CallToolResult) string {
	var b strings.Builder
	for _, c := range r.Content {
		if text, ok := c.(*sdk.TextContent); ok {
			b.WriteString(text.Text)
		}
	}
	return b.String()
}

// mention fails the test unless text has all of the parts.
func mention(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is missing in:\n%s", p, text)
		}
	}
}

// args is the arguments of a tool.
type args = map[string]any

// post sends a request of the protocol as it is.
func (s *server) post(t *testing.T, token, body string, header ...string) (int, []byte, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", s.endpoint(), bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer.Bytes(), resp.Header
}

// failure is an error of JSON-RPC.
type failure struct {
	JSONRPC string `json:"jsonrpc"`
	Error   *struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	} `json:"error"`
}

// wantFailure fails the test unless body is an error of JSON-RPC whose message has the part.
func wantFailure(t *testing.T, what string, status, wantStatus int, body []byte, part string) failure {
	t.Helper()
	var f failure
	if err := json.Unmarshal(body, &f); err != nil || f.JSONRPC != "2.0" || f.Error == nil || f.Error.Code == 0 || !strings.Contains(f.Error.Message, part) || status != wantStatus {
		t.Errorf("%s: %d %s (%v), want %d and an error that says %q", what, status, body, err, wantStatus, part)
	}
	return f
}

// sessions are the IDs of the sessions of a tenant.
func (s *server) sessions(t *testing.T, tenant string) (ids []string) {
	t.Helper()
	c, err := client.New(client.Options{Socket: s.Socket(), Tenant: tenant})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	list, err := c.Sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range list {
		ids = append(ids, one.ID)
	}
	return ids
}

func initialize(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`, id)
}

// modern is the header of the revision without sessions of the protocol.
var modern = []string{"Mcp-Protocol-Version", "2026-07-28"}

// newCall is a call of a tool in that revision.
func newCall(tool, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, tool, arguments)
}

func callParams(tool string, in any) *sdk.CallToolParams {
	return &sdk.CallToolParams{Name: tool, Arguments: in}
}
