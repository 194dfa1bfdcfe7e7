package mcp

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Every tool works, in every revision, on HTTP and on stdin and stdout.
func TestTools(t *testing.T) {
	s := start(t, "")
	http, stdio := []string{"2026-07-28", "2025-11-25"}, []string{"2026-07-28"} // with and without sessions of the protocol
	if testutil.Full() {
		http, stdio = append(http, "2024-11-05"), append(stdio, "2025-11-25")
	}
	t.Run("http", func(t *testing.T) {
		for _, revision := range http {
			t.Run(revision, func(t *testing.T) { useTools(t, s.connect(t, tokenA, revision, nil), revision) })
		}
	})
	t.Run("stdio", func(t *testing.T) {
		for _, revision := range stdio {
			t.Run(revision, func(t *testing.T) { useTools(t, s.stdio(t, revision, nil), revision) })
		}
	})
}

type commandResult struct {
	ExitCode *int   `json:"exit_code"`
	Verdict  string `json:"verdict"`
	Stdout   struct {
		Text, File string
		Bytes      int64
	}
	Stderr struct{ Text string }
	Files  []struct{ Path, Text, Note string }
}

type processResult struct {
	Process, State, Output string
	ExitCode               *int  `json:"exit_code"`
	NextOffset             int64 `json:"next_offset"`
	Processes              []struct{ Process, State string }
}

// png is an image of one pixel.
const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

func useTools(t *testing.T, c *sdk.ClientSession, revision string) {
	if got := c.InitializeResult().ProtocolVersion; got != revision {
		t.Errorf("revision %s, want %s", got, revision)
	}
	mention(t, c.InitializeResult().Instructions, "isolated", "/workspace", "python", "memory", "Network: ", "without use")
	tools, err := c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
		a := tool.Annotations
		if a == nil || a.OpenWorldHint == nil || a.DestructiveHint == nil || tool.OutputSchema == nil || tool.Title == "" || tool.Description == "" {
			t.Errorf("%s: annotations %+v, output schema %v", tool.Name, a, tool.OutputSchema)
		} else if a.ReadOnlyHint != (tool.Name == "read_file" || tool.Name == "list_files" || tool.Name == "process_output") || a.ReadOnlyHint && *a.DestructiveHint {
			t.Errorf("%s: annotations %+v", tool.Name, a)
		}
		if _, named := tool.InputSchema.(map[string]any)["properties"].(map[string]any)["session"]; named {
			t.Errorf("%s: the model can name a session", tool.Name)
		}
	}
	if got := strings.Join(names, " "); got != "edit_file exec list_files process_input process_output read_file run_code start_process stop_process write_file" {
		t.Errorf("tools: %s", got)
	}

	var r commandResult
	res := call(t, c, "exec", args{"command": "echo out; echo err >&2; exit 3"}, &r)
	if r.ExitCode == nil || *r.ExitCode != 3 || r.Verdict != "exited" || r.Stdout.Text != "out\n" || r.Stderr.Text != "err\n" {
		t.Errorf("exec: %+v", r)
	}
	mention(t, textOf(res), "exit code 3", "out\n", "err\n")
	call(t, c, "exec", args{"argv": []string{"cat"}, "stdin": "in", "env": args{"A": "b"}, "cwd": "/tmp"}, &r)
	if r.Stdout.Text != "in" {
		t.Errorf("exec with argv: %+v", r)
	}
	// The user is the one of the instructions: root by name, without capabilities.
	call(t, c, "exec", args{"command": "id -u; grep CapEff /proc/self/status; touch x; chown 1:1 x 2>/dev/null || echo refused"}, &r)
	mention(t, c.InitializeResult().Instructions, "uid 0 of the box, without capabilities")
	if r.Stdout.Text != "0\nCapEff:\t0000000000000000\nrefused\n" {
		t.Errorf("the user: %q", r.Stdout.Text)
	}
	call(t, c, "exec", args{"command": "sleep 600", "timeout_seconds": 0.3}, &r)
	if r.Verdict != "timeout" || r.ExitCode != nil {
		t.Errorf("a command over its time: %+v", r)
	}
	res = try(t, c, "exec", args{"argv": []string{"/no/such/program"}})
	if !res.IsError {
		t.Error("a program that does not exist is no error")
	}
	mention(t, textOf(res), "/no/such/program", "program_not_found")

	res = call(t, c, "run_code", args{"language": "python", "code": "import base64\nopen('one.png','wb').write(base64.b64decode('" + png + "'))\nopen('two.txt','w').write('two')\nprint(6*7)",
		"outputs": []string{"*.png", "*.txt"}}, &r)
	if r.Stdout.Text != "42\n" || len(r.Files) != 2 || r.Files[1].Text != "two" {
		t.Errorf("run_code: %+v", r)
	}
	if image := imageOf(res); !bytes.Equal(image, decode(t, png)) {
		t.Errorf("the image of run_code: %d bytes", len(image))
	}

	call(t, c, "write_file", args{"path": "dir/a.txt", "content": "one two\nthree\n"}, nil)
	call(t, c, "edit_file", args{"path": "dir/a.txt", "old": "two", "new": "2"}, nil)
	call(t, c, "write_file", args{"path": "dir/a.txt", "content": "four\n", "append": true}, nil)
	if res := call(t, c, "read_file", args{"path": "dir/a.txt"}, nil); textOf(res) != "one 2\nthree\nfour\n" {
		t.Errorf("the file: %q", textOf(res))
	}
	if res := call(t, c, "read_file", args{"path": "dir/a.txt", "offset": 4, "limit": 1}, nil); !strings.HasPrefix(textOf(res), "2\n[… 1 of 17 bytes") {
		t.Errorf("a part of the file: %q", textOf(res))
	}
	for old, says := range map[string]string{"five": "does not contain", "e": "3 times"} {
		res := try(t, c, "edit_file", args{"path": "dir/a.txt", "old": old, "new": "x"})
		if !res.IsError {
			t.Errorf("replacing %q works", old)
		}
		mention(t, textOf(res), says)
	}
	call(t, c, "write_file", args{"path": "image.png", "content_base64": png}, nil)
	if image := imageOf(call(t, c, "read_file", args{"path": "image.png"}, nil)); !bytes.Equal(image, decode(t, png)) {
		t.Errorf("the image: %d bytes", len(image))
	}
	mention(t, textOf(call(t, c, "list_files", args{}, nil)), "dir/", "image.png (70 bytes)")
	res = try(t, c, "read_file", args{"path": "none"})
	if !res.IsError {
		t.Error("a file that does not exist is read")
	}
	mention(t, textOf(res), "no_such_file")
	if res := try(t, c, "read_file", args{"path": "none", "session": "s"}); !res.IsError {
		t.Error("the model names a session")
	}

	var p processResult
	call(t, c, "start_process", args{"command": "echo ready; while read line; do echo \"got $line\"; done; echo end", "process": "loop"}, &p)
	if p.Process != "loop" || p.State != "running" || p.Output != "ready\n" {
		t.Errorf("start_process: %+v", p)
	}
	call(t, c, "process_input", args{"process": "loop", "text": "one\n"}, &p)
	if p.Output != "got one\n" {
		t.Errorf("process_input: %+v", p)
	}
	call(t, c, "process_output", args{"process": "loop"}, &p)
	if p.Output != "ready\ngot one\n" || p.State != "running" {
		t.Errorf("process_output without an offset: %+v", p)
	}
	call(t, c, "process_output", args{"process": "loop", "offset": -4}, &p)
	if p.Output != "one\n" {
		t.Errorf("process_output from the end: %+v", p)
	}
	call(t, c, "process_input", args{"process": "loop", "text": "two\n", "eof": true, "wait_seconds": 0}, nil)
	for got := ""; got != "got two\nend\n"; {
		call(t, c, "process_output", args{"process": "loop", "offset": p.NextOffset, "wait_seconds": 30}, &p)
		if got += p.Output; !strings.HasPrefix("got two\nend\n", got) || p.Output == "" {
			t.Fatalf("process_output: %q, %+v", got, p)
		}
	}
	call(t, c, "start_process", args{"argv": []string{"sleep", "600"}, "process": "sleeper", "wait_seconds": 0}, nil)
	call(t, c, "process_output", args{}, &p)
	if len(p.Processes) != 2 || p.Processes[1].State != "running" {
		t.Errorf("processes: %+v", p)
	}
	call(t, c, "stop_process", args{"process": "sleeper", "forget": true}, &p)
	call(t, c, "stop_process", args{"process": "loop", "forget": true}, &p)
	call(t, c, "process_output", args{}, &p)
	if len(p.Processes) != 0 {
		t.Errorf("processes that were forgotten: %+v", p)
	}
}

func decode(t *testing.T, text string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// imageOf is the image in a result.
func imageOf(r *sdk.CallToolResult) []byte {
	for _, c := range r.Content {
		if image, ok := c.(*sdk.ImageContent); ok && image.MIMEType == "image/png" {
			return image.Data
		}
	}
	return nil
}
