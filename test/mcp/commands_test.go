package mcp

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Of a long output, the result has beginning, end and a link to all of it.
func TestLongOutput(t *testing.T) {
	s := start(t, "")
	c := s.connect(t, tokenA, "", nil)
	const lines = 200_000
	var r commandResult
	res := call(t, c, "exec", args{"command": fmt.Sprintf("seq %d; seq 3000 >&2", lines)}, &r)
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i+1)
	}
	if r.Stdout.Bytes != int64(want.Len()) || len(r.Stdout.Text) > 17<<10 || !strings.HasPrefix(r.Stdout.Text, "1\n2\n") || !strings.HasSuffix(r.Stdout.Text, "\n199999\n200000\n") || r.Stderr.Text == "" {
		t.Errorf("stdout of %d bytes, shown %d: %.40q", r.Stdout.Bytes, len(r.Stdout.Text), r.Stdout.Text)
	}
	mention(t, r.Stdout.Text, "are left out and in the file "+r.Stdout.File)
	var link *sdk.ResourceLink
	for _, part := range res.Content {
		if l, ok := part.(*sdk.ResourceLink); ok {
			link = l
		}
	}
	if link == nil || link.Size == nil || *link.Size != int64(want.Len()) {
		t.Fatalf("link: %+v", link)
	}
	whole, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: link.URI})
	if err != nil || len(whole.Contents) != 1 || whole.Contents[0].Text != want.String() {
		t.Errorf("the resource: %v, %d bytes", err, len(whole.Contents[0].Text))
	}
	// A part of it, as its text says.
	part := textOf(call(t, c, "read_file", args{"path": r.Stdout.File, "offset": 100_000, "limit": 1000}, nil))
	if !strings.HasPrefix(part, want.String()[100_000:101_000]) {
		t.Errorf("a part: %.40q", part)
	}
	for range 9 { // only the last ones are kept
		call(t, c, "exec", args{"command": "seq 10000"}, nil)
	}
	call(t, c, "exec", args{"command": "ls /tmp/boxd-output | wc -l"}, &r)
	if strings.TrimSpace(r.Stdout.Text) != "8" {
		t.Errorf("files with outputs: %s", r.Stdout.Text)
	}
	// Where there is no room for the file, the command and what is shown do not suffer.
	call(t, c, "exec", args{"command": "head -c 1T /dev/zero > /tmp/full; seq 100000"}, &r)
	if r.ExitCode == nil || *r.ExitCode != 0 || r.Stdout.File != "" || !strings.HasSuffix(r.Stdout.Text, "\n100000\n") {
		t.Errorf("on a full disk: %+v", r)
	}
	mention(t, r.Stdout.Text, "left out and lost: ")
	call(t, c, "exec", args{"command": "rm /tmp/full; mkdir sub; truncate -s 17M /workspace/large"}, nil)
	if _, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "boxd://box/workspace/large"}); err == nil || !strings.Contains(err.Error(), "17825792 bytes") {
		t.Errorf("a resource that is too large: %v", err)
	}
	// Many at once wait for one another.
	call(t, c, "exec", args{"command": "head -c 4M /dev/urandom > /workspace/most"}, nil)
	var reading sync.WaitGroup
	for range 6 {
		reading.Go(func() {
			if r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "boxd://box/workspace/most"}); err != nil || len(r.Contents[0].Blob) != 4<<20 {
				t.Errorf("one of many: %v", err)
			}
		})
	}
	reading.Wait()
	// The link to a file leads to it wherever the command has run.
	for _, cwd := range []string{"sub", "/workspace/sub"} {
		res := call(t, c, "exec", args{"command": "head -c 20000 /dev/zero | tr '\\0' x > long.txt", "cwd": cwd, "outputs": []string{"*.txt"}}, nil)
		link, ok := res.Content[len(res.Content)-1].(*sdk.ResourceLink)
		if !ok {
			t.Fatalf("%s: no link: %s", cwd, textOf(res))
		}
		if whole, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: link.URI}); err != nil || len(whole.Contents[0].Text) != 20000 {
			t.Errorf("%s: %s: %v", cwd, link.URI, err)
		}
	}
	if _, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "boxd://box/none"}); err == nil {
		t.Error("a resource that does not exist is read")
	}
}

// awaitExecs waits until so many commands run in the sessions of tenant a.
func (s *server) awaitExecs(t *testing.T, want int) {
	t.Helper()
	c, err := client.New(client.Options{Socket: s.Socket(), Tenant: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for deadline := time.Now().Add(testutil.Patience()); ; time.Sleep(20 * time.Millisecond) {
		list, err := c.Sessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		have := 0
		for _, one := range list {
			have += one.Execs
		}
		if have == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d commands run, want %d", have, want)
		}
	}
}

// sleepers is how many processes of a command are alive in the box of c.
func sleepers(t *testing.T, c *sdk.ClientSession) string {
	t.Helper()
	var r commandResult
	call(t, c, "exec", args{"command": `n=0; for f in /proc/[0-9]*/cmdline; do case $(tr '\0' ' ' <$f 2>/dev/null) in "sleep 4321 "*) n=$((n+1));; esac; done; echo $n`}, &r)
	return strings.TrimSpace(r.Stdout.Text)
}

const tree = "setsid sleep 4321 & (sleep 4321 & sleep 4321); wait"

// A call that is cancelled, and one whose connection is lost, ends with all of its processes.
func TestCancellation(t *testing.T) {
	s := start(t, "")
	look := s.connect(t, tokenA, "", nil)
	for _, revision := range []string{"2026-07-28", "2025-11-25"} {
		t.Run(revision, func(t *testing.T) {
			c := s.connect(t, tokenA, revision, nil)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "exec", Arguments: args{"command": tree, "timeout_seconds": 300}})
				ended <- err
			}()
			for deadline := time.Now().Add(testutil.Patience()); sleepers(t, look) != "3"; {
				if time.Now().After(deadline) {
					t.Fatal("the command does not start its processes")
				}
			}
			cancel()
			if err := <-ended; err == nil {
				t.Error("a call that was cancelled succeeds")
			}
			s.awaitExecs(t, 0)
			if n := sleepers(t, look); n != "0" {
				t.Errorf("%s processes have survived", n)
			}
		})
	}
	t.Run("disconnected", func(t *testing.T) {
		_, _, header := s.post(t, tokenA, initialize(1))
		id := header.Get("Mcp-Session-Id")
		if status, body, _ := s.post(t, tokenA, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id", id); status != 202 {
			t.Fatalf("%d %s", status, body)
		}
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		body := `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"exec","arguments":{"command":"` + tree + `","timeout_seconds":300}}}`
		fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nMcp-Session-Id: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s", tokenA, id, len(body), body)
		s.awaitExecs(t, 1)
		conn.Close()
		s.awaitExecs(t, 0)
		if n := sleepers(t, look); n != "0" {
			t.Errorf("%s processes have survived", n)
		}
	})
	t.Run("stdin ends", func(t *testing.T) {
		boxd, _ := testutil.BuildBinaries(t)
		cmd := exec.CommandContext(t.Context(), boxd, "mcp", "--stdio", "--socket", s.Socket(), "--tenant", "a")
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(in, "%s\n%s\n%s\n", initialize(1), `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"exec","arguments":{"command":"`+tree+`","timeout_seconds":300}}}`)
		s.awaitExecs(t, 1)
		in.Close()
		began := time.Now()
		if err := cmd.Wait(); err != nil {
			t.Errorf("boxd mcp --stdio: %v", err)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("the end of stdin was noticed after %s", took)
		}
		s.awaitExecs(t, 0)
	})
}

// A client that asks for it hears of a long call.
func TestProgress(t *testing.T) {
	s := start(t, "")
	hear := func(t *testing.T, revision string) {
		t.Parallel() // progress comes each second
		heard := make(chan *sdk.ProgressNotificationParams, 100)
		c := s.connect(t, tokenA, revision, &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { heard <- r.Params }})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p := &sdk.CallToolParams{Name: "exec", Arguments: args{"command": "echo hello; sleep 300", "timeout_seconds": 300}}
			p.SetProgressToken("mine")
			_, _ = c.CallTool(ctx, p)
		}()
		select {
		case p := <-heard:
			if p.ProgressToken != "mine" || p.Progress <= 0 || p.Message != "6 bytes of output" {
				t.Errorf("%s: progress %+v", revision, p)
			}
		case <-time.After(testutil.Patience()):
			t.Errorf("%s: no progress", revision)
		}
		cancel()
		<-ended
	}
	for _, revision := range []string{"2026-07-28", "2025-11-25"} {
		t.Run(revision, func(t *testing.T) { hear(t, revision) })
	}
}

// Processes survive the daemon, and their names a new connection.
func TestDaemonKilled(t *testing.T) {
	s := start(t, "")
	c := s.connect(t, tokenA, "2025-11-25", nil)
	call(t, c, "start_process", args{"command": "for i in 1 2 3; do read x; echo $x; done", "process": "p"}, nil)
	call(t, c, "process_input", args{"process": "p", "text": "before\n"}, nil)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + addressOf(t, s.Daemon)
	c = s.connect(t, tokenA, "", nil)
	var p processResult
	call(t, c, "process_input", args{"process": "p", "text": "after\n"}, &p)
	if p.Output != "after\n" || p.NextOffset != 13 {
		t.Errorf("after the restart: %+v", p)
	}
}

// A burst of calls of one client at once leaves nothing behind, and mixes nothing up.
func TestManyCalls(t *testing.T) {
	s := start(t, "")
	for _, revision := range []string{"2026-07-28", "2025-11-25"} {
		c := s.connect(t, tokenA, revision, nil)
		call(t, c, "exec", args{"command": "true"}, nil)
		var failed atomic.Int64
		done := make(chan struct{})
		const calls = 24
		for i := range calls {
			go func() {
				defer func() { done <- struct{}{} }()
				res, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "exec", Arguments: args{"command": fmt.Sprint("echo ", i)}})
				if err != nil || res.IsError || !strings.Contains(textOf(res), fmt.Sprintf("stdout:\n%d\n", i)) {
					failed.Add(1)
				}
			}()
		}
		for range calls {
			<-done
		}
		if n := failed.Load(); n > 0 {
			t.Errorf("%s: %d calls failed", revision, n)
		}
	}
	s.awaitExecs(t, 0)
}
