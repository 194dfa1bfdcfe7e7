package mcp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// revisions are those that docs/mcp.md names, newest first.
var revisions = []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// Every revision works on HTTP and on stdin and stdout, with messages that no SDK has written.
func TestRevisions(t *testing.T) {
	s := start(t, "")
	for _, c := range []struct{ asked, answered string }{
		{revisions[0], revisions[0]}, {revisions[1], revisions[1]}, {revisions[2], revisions[2]}, {revisions[3], revisions[3]}, {revisions[4], revisions[4]},
		{"1999-01-01", "2025-11-25"}, // one that nobody knows: the newest that has initialize
	} {
		t.Run("http,"+c.asked, func(t *testing.T) {
			header := []string{"Mcp-Protocol-Version", c.answered}
			useRevision(t, c.asked, c.answered, func(body string) string {
				with := header
				if method := methodOf(t, body); method == "initialize" {
					with = nil // the first request names no revision and no session
				} else if c.answered == revisions[0] {
					with = append(with, "Mcp-Method", method, "Mcp-Name", map[string]string{"tools/call": "exec"}[method])
				}
				status, answer, got := s.post(t, tokenA, body, with...)
				if id := got.Get("Mcp-Session-Id"); id != "" && len(header) == 2 {
					if c.answered == revisions[0] {
						t.Errorf("a session of the protocol: %s", id)
					}
					header = append(header, "Mcp-Session-Id", id)
				}
				if status != http.StatusOK && status != http.StatusAccepted {
					t.Errorf("%s: %d %s", body, status, answer)
				}
				if _, data, ok := strings.Cut(string(answer), "data: "); ok {
					answer = []byte(data)
				}
				return string(answer)
			})
		})
		t.Run("stdio,"+c.asked, func(t *testing.T) {
			boxd, _ := testutil.BuildBinaries(t)
			cmd := exec.Command(boxd, "mcp", "--stdio", "--socket", s.Socket())
			cmd.Stderr = os.Stderr
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(out)
			useRevision(t, c.asked, c.answered, func(body string) string {
				if _, err := io.WriteString(in, body+"\n"); err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(body, `"id"`) {
					return ""
				}
				line, err := lines.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				return line
			})
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}

	// The transport of 2024-11-05, HTTP+SSE, begins with a GET, which needs a session here.
	r, err := http.NewRequestWithContext(t.Context(), "GET", s.endpoint(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Authorization": {"Bearer " + tokenA}, "Accept": {"text/event-stream"}}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode < 400 {
		t.Errorf("HTTP+SSE: %s", resp.Status)
	}
}

func methodOf(t *testing.T, body string) string {
	t.Helper()
	var m struct{ Method string }
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatal(err)
	}
	return m.Method
}

// useRevision greets the server, lists its tools and calls one. ask sends a message and returns the answer.
func useRevision(t *testing.T, asked, answered string, ask func(body string) string) {
	t.Helper()
	meta := ""
	result := func(id int, method, params string) (r struct {
		ProtocolVersion   string
		SupportedVersions []string
		ResultType        string
		Tools             []struct{ Name string }
		StructuredContent *commandResult
	}) {
		t.Helper()
		var m struct {
			ID     int
			Result json.RawMessage
		}
		answer := ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s}}`, id, method, strings.Trim(params+","+meta, ",")))
		if err := json.Unmarshal([]byte(answer), &m); err != nil || m.ID != id {
			t.Fatalf("%s: %v: %s", method, err, answer)
		}
		if err := json.Unmarshal(m.Result, &r); err != nil {
			t.Fatalf("%s: %v: %s", method, err, answer)
		}
		if modern := answered == revisions[0]; (r.ResultType == "complete") != modern {
			t.Errorf("%s: resultType %q", method, r.ResultType)
		}
		return r
	}
	if answered == revisions[0] { // it has no initialize: each request names the revision
		meta = fmt.Sprintf(`"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"}}`, asked)
		if r := result(1, "server/discover", ""); strings.Join(r.SupportedVersions, " ") != strings.Join(revisions, " ") {
			t.Errorf("revisions %q", r.SupportedVersions)
		}
	} else {
		r := result(1, "initialize", fmt.Sprintf(`"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"raw","version":"1"}`, asked))
		if r.ProtocolVersion != answered {
			t.Errorf("revision %q, want %q", r.ProtocolVersion, answered)
		}
		ask(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	}
	if r := result(2, "tools/list", ""); len(r.Tools) != 10 {
		t.Errorf("tools: %v", r.Tools)
	}
	r := result(3, "tools/call", `"name":"exec","arguments":{"command":"echo $((6 * 7))"}`)
	if r.StructuredContent == nil || r.StructuredContent.Stdout.Text != "42\n" {
		t.Errorf("exec: %+v", r)
	}
}
