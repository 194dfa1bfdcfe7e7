package mcp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// Lines on stdin that are no messages get an error in the protocol's form, and end neither the connection nor
// a call in progress.
func TestMalformedLines(t *testing.T) {
	s := start(t, "")
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
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	// next reads a message. Progress is skipped, unless it is awaited.
	next := func(what string, progress bool) string {
		t.Helper()
		for lines.Scan() {
			var m struct{ Method string }
			if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
				t.Fatalf("%s: %v: %s", what, err, lines.Text())
			}
			if (m.Method == "notifications/progress") == progress {
				return lines.Text()
			}
		}
		t.Fatalf("%s: the connection has ended", what)
		return ""
	}
	send := func(line string) {
		t.Helper()
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	tool := func(id int, name, arguments string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":%d}}}`, id, name, arguments, id)
	}
	send(initialize(1))
	mention(t, next("initialize", false), `"id":1`, `"protocolVersion":"2025-11-25"`)
	send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	send(tool(2, "exec", `{"command":"until [ -e go ]; do sleep 0.05; done; echo it was running"}`))
	mention(t, next("the call that runs", true), `"progressToken":2`)
	send(strings.Replace(list, `"id":1`, `"id":2`, 1))
	mention(t, next("the ID of a call that runs", false), `"id":2`, `"code":-32600`, "is that of a request in progress")
	for _, c := range []struct {
		what, line string
		code       int
	}{
		{"no JSON", "hello", -32700},
		{"half a message", `{"jsonrpc":"2.0","id":3,`, -32700},
		{"two messages", list + list, -32700},
		{"bytes that are no text", "\xff\x00\xfe", -32700},
		{"a number", "7", -32600},
		{"an object", "{}", -32600},
		{"another protocol", `{"jsonrpc":"1.0","id":3,"method":"ping"}`, -32600},
		{"an ID that is none", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, -32600},
		{"a response to nothing", `{"jsonrpc":"2.0","id":3}`, -32600},
		{"an error that is none", `{"jsonrpc":"2.0","id":3,"error":7}`, -32600},
		{"a batch", "[" + list + "]", -32600},
		{"an empty batch", "[]", -32600},
		{"a line that is too long", strings.Repeat("x", 4<<20+1), -32600},
	} {
		send(c.line)
		mention(t, next(c.what, false), `"id":null`, fmt.Sprintf(`"code":%d`, c.code), `"jsonrpc":"2.0"`)
	}
	send("\n \r")
	send(strings.Replace(list, `"id":1`, `"id":4`, 1))
	mention(t, next("a good request", false), `"id":4`, `"run_code"`)
	send(tool(5, "write_file", `{"path":"go","content":""}`))
	mention(t, next("one answer", false)+next("the other one", false), `"id":5`, `"id":2`, "it was running", `"exit_code":0`)
	if _, err := io.WriteString(in, strings.Replace(list, `"id":1`, `"id":6`, 1)); err != nil { // without a newline at its end
		t.Fatal(err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
