package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/mcp/gateway"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// at returns the same daemon with another path, for post and connect.
func (s *server) at(name string) *server {
	other := *s
	other.path = "/mcp/" + name
	return &other
}

const fixture = `{command: [FIXTURE%s], TESTDATA, start_timeout: 2s, idle: %s, mode: %s}`

// wantPhase fails the test unless body is an error of a server in a phase, and returns its data.
func wantPhase(t *testing.T, what string, body []byte, phase string, says ...string) gateway.Failure {
	t.Helper()
	var r struct {
		ID    int `json:"id"`
		Error *struct {
			Message string          `json:"message"`
			Data    gateway.Failure `json:"data"`
		} `json:"error"`
	}
	if err := json.Unmarshal(body, &r); err != nil || r.Error == nil || r.ID != 1 || r.Error.Data.Phase != phase || r.Error.Data.Server == "" {
		t.Errorf("%s: %.1000s (%v), want a failure in the phase %s", what, body, err, phase)
		return gateway.Failure{}
	}
	for _, part := range says {
		if !strings.Contains(r.Error.Message, part) {
			t.Errorf("%s: %q, want it to say %q", what, r.Error.Message, part)
		}
	}
	return r.Error.Data
}

// Each way in which a server can fail is named by its phase, with what the server has said.
func TestServedFailures(t *testing.T) {
	server := func(name, ways string) string {
		return "  " + name + ": " + fmt.Sprintf(fixture, ways, "1m", "shared") + "\n"
	}
	s := served(t, server("exit", ", exit")+server("mute", ", mute")+server("deaf", ", deaf")+server("garbage", ", garbage")+server("long", ", long")+server("good", "")+
		server("flood", ", flood")+`
  noprogram: {command: [/no/such/program]}
  noimage: {command: [x], profile: imaged}
  noinstall: {command: [x], install: "echo no such package >&2; exit 9", install_size: 2M}
  installed: {command: [sh, -c, 'cat /mcp/said >&2; touch /mcp/x 2>/dev/null && echo writable >&2; exec FIXTURE2 exit'], TESTDATA, install: "echo it is installed >/mcp/said", install_size: 2M}
  pinned: {command: [FIXTURE], TESTDATA, tools: {pin: "sha256:`+strings.Repeat("0", 64)+`"}}
  reported: {command: [FIXTURE], TESTDATA, tools: {pin: "sha256:`+strings.Repeat("0", 64)+`", changed: report, allow: [echo, wait]}}
`)
	ask := func(name, body string) []byte {
		t.Helper()
		_, answer, _ := s.at(name).post(t, tokenA, body)
		return answer
	}
	f := wantPhase(t, "a program that ends", ask("exit", initialize(1)), gateway.PhaseHandshake, "exited with code 3", "cannot find my configuration")
	if f.ExitCode == nil || *f.ExitCode != 3 || f.Verdict != "exited" {
		t.Errorf("a program that ends: %+v", f)
	}
	if f := wantPhase(t, "the same at once", ask("exit", initialize(1)), gateway.PhaseHandshake, "started again in"); f.RetryAfter != 1 {
		t.Errorf("retry after %d s", f.RetryAfter)
	}
	var slow sync.WaitGroup
	defer slow.Wait()
	slow.Go(func() {
		wantPhase(t, "no answer", ask("mute", initialize(1)), gateway.PhaseHandshake, "did not answer initialize within 2s", "I have heard initialize")
	})
	slow.Go(func() {
		wantPhase(t, "no reading", ask("deaf", initialize(1)), gateway.PhaseHandshake, "did not answer")
	})
	wantPhase(t, "no program", ask("noprogram", initialize(1)), gateway.PhaseStart, "/no/such/program")
	wantPhase(t, "no image", ask("noimage", initialize(1)), gateway.PhaseImage, "nothing.example/none")
	wantPhase(t, "no install", ask("noinstall", initialize(1)), gateway.PhaseInstall, "status 9", "no such package")
	f = wantPhase(t, "installed", ask("installed", initialize(1)), gateway.PhaseHandshake, "it is installed")
	if strings.Contains(strings.Join(f.Stderr, "\n"), "writable") {
		t.Errorf("the server can write to what was installed: %q", f.Stderr)
	}
	f = wantPhase(t, "other tools", ask("pinned", initialize(1)), gateway.PhaseTools, "and sha256:000", "is pinned")
	if !strings.HasPrefix(f.Tools, "sha256:") || len(f.Tools) != 71 {
		t.Errorf("digest %q", f.Tools)
	}

	c := s.at("garbage").connect(t, tokenA, "", nil)
	call(t, c, "echo", args{"a": 1}, nil)
	_, body, _ := s.at("long").post(t, tokenA, newCall("echo", "{}"), modern...)
	wantPhase(t, "a message that is too long", body, gateway.PhaseRun, "more than 16777216 bytes")
	_, body, _ = s.at("long").post(t, tokenA, newCall("echo", "{}"), modern...)
	wantPhase(t, "once more, from the same process", body, gateway.PhaseRun, "more than 16777216 bytes")
	_, body, _ = s.at("good").post(t, tokenA, newCall("die", "{}"), modern...)
	f = wantPhase(t, "a server that dies", body, gateway.PhaseLost, "exited with code 7", "dying of a bug")
	if len(f.Stderr) != 2 || f.Stderr[1] != "of a bug" {
		t.Errorf("stderr %q", f.Stderr)
	}
	if status, body, _ := s.at("good").post(t, tokenA, newCall("echo", `{"again":true}`), modern...); status != 200 || !strings.Contains(string(body), `"again":true`) {
		t.Errorf("after that: %d %s", status, body)
	}
	if status, body, _ := s.at("flood").post(t, tokenA, newCall("echo", `{"through":true}`), append(modern, "Accept", "application/json")...); status != 200 || !strings.Contains(string(body), `"through":true`) {
		t.Errorf("through a flood: %d %.200s", status, body)
	}

	reported := s.at("reported").connect(t, tokenA, "", nil)
	list, err := reported.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 2 {
		t.Errorf("allowed tools: %v %v", list, err)
	}
	if _, err := reported.CallTool(t.Context(), callParams("whoami", args{})); err == nil || !strings.Contains(err.Error(), "not allowed") {
		t.Errorf("a tool that is not allowed: %v", err)
	}
	call(t, reported, "echo", args{}, nil)
}

// Tools that are not the pinned ones are not seen and not called, however they come.
func TestServedPins(t *testing.T) {
	text := "  changes: {command: [FIXTURE, changes], TESTDATA, mode: %s, tools: {pin: \"sha256:%s\"}}\n"
	s := served(t, fmt.Sprintf(text, "shared", strings.Repeat("0", 64)))
	_, body, _ := s.at("changes").post(t, tokenA, initialize(1))
	pin := strings.TrimPrefix(wantPhase(t, "first", body, gateway.PhaseTools).Tools, "sha256:")
	for _, mode := range []string{"shared", "session"} {
		s := served(t, fmt.Sprintf(text, mode, pin))
		c := s.at("changes").connect(t, tokenA, "2025-11-25", nil)
		if mode == "session" {
			call(t, c, "echo", args{}, nil) // checks
		}
		if _, err := c.ListTools(t.Context(), nil); err == nil || !strings.Contains(err.Error(), `tool "sudden_2" is not the pinned one`) {
			t.Errorf("%s: a list with another tool: %v", mode, err)
		}
		if _, err := c.CallTool(t.Context(), callParams("echo", args{})); err == nil || !strings.Contains(err.Error(), "is pinned") {
			t.Errorf("%s: a call after that: %v", mode, err)
		}
	}
}

type whoami struct {
	PID, Started int
	Cache        string
}

// who calls the tool whoami of a server.
func (s *server) who(t *testing.T, name, token string, header ...string) (w whoami, status int) {
	t.Helper()
	status, answer, _ := s.at(name).post(t, token, newCall("whoami", "{}"), header...)
	var r struct {
		Result struct{ StructuredContent whoami }
	}
	if err := json.Unmarshal(answer, &r); err != nil {
		t.Fatalf("%s: %v: %s", name, err, answer)
	}
	return r.Result.StructuredContent, status
}

// begin initializes a session of the protocol with a server, and returns its ID.
func (s *server) begin(t *testing.T, name string) string {
	t.Helper()
	_, _, header := s.at(name).post(t, tokenA, initialize(1))
	return header.Get("Mcp-Session-Id")
}

// restart kills the daemon and starts it again.
func (s *server) restart(t *testing.T) {
	t.Helper()
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + addressOf(t, s.Daemon)
}

// A process outlives kill -9 of the daemon, and sessions of the protocol that have one go on. All boxes of a server share the
// cache of its install step, and no other server does.
func TestServedRestart(t *testing.T) {
	install := `, install: "mkdir -p $XDG_CACHE_HOME && cat /proc/sys/kernel/random/uuid >$XDG_CACHE_HOME/mark", install_size: 2M}`
	s := served(t, "  own: "+strings.Replace(fmt.Sprintf(fixture, "", "1m", "session"), "}", install, 1)+"\n  one: "+strings.Replace(fmt.Sprintf(fixture, "", "1m", "shared"), "}", install, 1)+
		"\n  strict: "+fmt.Sprintf(fixture, ", strict", "1m", "shared")+"\n")
	own, shared := s.begin(t, "own"), s.begin(t, "one")
	before, _ := s.who(t, "own", tokenA, "Mcp-Session-Id", own)
	one, _ := s.who(t, "one", tokenA, modern...)
	strict, _ := s.who(t, "strict", tokenA, modern...)
	if before.Started != 1 || one.Started != 1 || strict.Started != 1 {
		t.Fatalf("%+v %+v %+v", before, one, strict)
	}
	if other, _ := s.who(t, "own", tokenA, "Mcp-Session-Id", s.begin(t, "own")); other.Cache != before.Cache || len(other.Cache) != 36 {
		t.Errorf("another session has the cache %q, the first one %q", other.Cache, before.Cache)
	}
	if one.Cache == before.Cache || len(one.Cache) != 36 || strict.Cache != "" {
		t.Errorf("caches of three servers: %q, %q, %q", before.Cache, one.Cache, strict.Cache)
	}
	s.restart(t)
	if _, status := s.who(t, "own", tokenA2, "Mcp-Session-Id", own); status != 404 {
		t.Errorf("another token has the session: %d", status)
	}
	if after, _ := s.who(t, "own", tokenA, "Mcp-Session-Id", own); after != before {
		t.Errorf("a session with a process: %+v, before %+v", after, before)
	}
	if again, _ := s.who(t, "own", tokenA, "Mcp-Session-Id", s.begin(t, "own")); again.Cache != before.Cache {
		t.Errorf("a session after the restart has the cache %q, one before %q", again.Cache, before.Cache)
	}
	if _, status := s.who(t, "one", tokenA, "Mcp-Session-Id", shared); status != 404 {
		t.Errorf("a session without a process: %d, want to initialize again", status)
	}
	if after, _ := s.who(t, "one", tokenA, modern...); after.PID != one.PID || after.Started != 2 {
		t.Errorf("a shared process: %+v, before %+v", after, one)
	}
	if after, _ := s.who(t, "strict", tokenA, modern...); after.Started != 1 {
		t.Errorf("a process that refuses a second initialize was not replaced: %+v, before %+v", after, strict)
	}
}

// A call that is in progress when the daemon is killed ends for its client at once. The next call works, and what nobody comes back
// to is not left after the idle time.
func TestServedKilledCall(t *testing.T) {
	server := func(name, idle, mode string) string {
		return "  " + name + ": " + fmt.Sprintf(fixture, "", idle, mode) + "\n"
	}
	s := served(t, server("own", "1m", "session")+server("one", "1m", "shared")+server("each", "1m", "request")+
		server("left", "1s", "request")+server("gone-own", "1s", "session")+server("gone-one", "1s", "shared"))
	const wait = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	own := []string{"Mcp-Session-Id", s.begin(t, "own")}
	ended := make(chan string, 5)
	var calling sync.WaitGroup
	call := func(name string, header []string) {
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.at(name).endpoint(), strings.NewReader(wait))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Authorization": {"Bearer " + tokenA}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, header[0]: {header[1]}}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		events := bufio.NewReader(resp.Body)
		for line := ""; !strings.Contains(line, "notifications/progress"); { // it runs
			if line, err = events.ReadString('\n'); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		calling.Go(func() {
			defer resp.Body.Close()
			rest, err := io.ReadAll(events)
			ended <- fmt.Sprintf("%s: %s, %v", name, rest, err)
			if err == nil && !strings.Contains(string(rest), `"error"`) {
				t.Errorf("%s: the answer %q ends as if it were whole", name, rest)
			}
		})
	}
	call("own", own)
	for _, name := range []string{"one", "each", "left"} {
		call(name, modern)
	}
	bridge := connect(t, &sdk.CommandTransport{Command: s.named(t, tokenA, "one")}, "2025-11-25", nil)
	calling.Go(func() {
		_, err := bridge.CallTool(t.Context(), callParams("wait", args{}))
		ended <- fmt.Sprintf("boxd mcp serve: %v", err)
		if err == nil || !strings.Contains(err.Error(), `"one": lost: `) {
			t.Errorf("boxd mcp serve: %v", err)
		}
	})
	s.who(t, "gone-own", tokenA, "Mcp-Session-Id", s.begin(t, "gone-own"))
	s.who(t, "gone-one", tokenA, modern...)
	killed := time.Now()
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	calling.Wait()
	if took := time.Since(killed); took > 10*time.Second {
		t.Errorf("the clients learned of it after %s", took)
	}
	close(ended)
	for text := range ended {
		t.Log(text)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + addressOf(t, s.Daemon)
	for name, header := range map[string][]string{"own": own, "one": modern, "each": modern} {
		if w, status := s.who(t, name, tokenA, header...); status != 200 || w.PID == 0 {
			t.Errorf("%s: the next call: %d %+v", name, status, w)
		}
	}
	boxtest.WaitUntil(t, "processes to which nobody has come back end", func() bool {
		return !slices.ContainsFunc(s.sessions(t, "a"), func(id string) bool {
			return strings.HasPrefix(id, "mcp-left") || strings.HasPrefix(id, "mcp-gone-")
		})
	})
}

// Whoever may not use a server does not, and no message of a client breaks anything.
func TestServedAccess(t *testing.T) {
	s := served(t, "  own: "+fmt.Sprintf(fixture, "", "1m", "session")+"\n  one: "+fmt.Sprintf(fixture, "", "1m", "shared")+"\n  only-b: "+strings.Replace(fmt.Sprintf(fixture, "", "1m", "shared"), "{", "{tenants: [b], ", 1)+"\n")
	_, _, header := s.at("own").post(t, tokenA, initialize(1))
	id := []string{"Mcp-Session-Id", header.Get("Mcp-Session-Id")}
	for _, c := range []struct {
		what, name, token, body string
		header                  []string
		status                  int
		says                    string
	}{
		{"no token", "own", "", initialize(1), nil, 401, "no credentials"},
		{"a wrong token", "own", strings.Repeat("x", 30), initialize(1), nil, 401, "unknown bearer token"},
		{"a viewer", "own", tokenRead, initialize(1), nil, 403, "role viewer"},
		{"another tenant's session", "own", tokenB, list, id, 404, "initialize a new one"},
		{"another token's session", "own", tokenA2, list, id, 404, "initialize a new one"},
		{"a session of another server", "one", tokenA, list, id, 404, "initialize a new one"},
		{"a made-up session", "own", tokenA, list, []string{"Mcp-Session-Id", strings.Repeat("a", 26)}, 404, "initialize a new one"},
		{"a strange session", "own", tokenA, list, []string{"Mcp-Session-Id", "../x"}, 404, "initialize a new one"},
		{"no session", "own", tokenA, list, nil, 400, "Mcp-Session-Id is missing"},
		{"a foreign page", "own", tokenA, initialize(1), []string{"Origin", "https://evil.example"}, 403, "another site"},
		{"no such server", "none", tokenA, initialize(1), nil, 404, `no server "none"`},
		{"a path below", "own/x", tokenA, initialize(1), nil, 404, "no server"},
		{"a server of another tenant", "only-b", tokenA, initialize(1), nil, 404, `no server "only-b"`},
		{"a form", "own", tokenA, initialize(1), []string{"Content-Type", "text/plain"}, 415, "application/json"},
		{"no JSON", "own", tokenA, "{", id, 400, "JSON"},
		{"a batch", "own", tokenA, "[" + list + "]", id, 400, "batches"},
		{"an ID that is none", "own", tokenA, `{"jsonrpc":"2.0","id":{},"method":"x"}`, id, 400, "id must be"},
		{"another version", "own", tokenA, `{"jsonrpc":"1.0","id":1,"method":"x"}`, id, 400, "jsonrpc"},
		{"nothing of all", "own", tokenA, `{"jsonrpc":"2.0","id":1}`, id, 400, "neither"},
		{"deep nesting", "own", tokenA, `{"jsonrpc":"2.0","id":1,"method":"x","params":` + strings.Repeat("[", 20000), id, 400, "JSON"},
		{"a message that is too long", "own", tokenA, `{"jsonrpc":"2.0","id":1,"method":"x","params":"` + strings.Repeat("x", 16<<20) + `"}`, id, 413, "16777216"},
		{"a revision without sessions", "own", tokenA, newList, modern, 400, "has no sessions"},
		{"a revision to come", "one", tokenA, newList, []string{"Mcp-Protocol-Version", "2031-01-01"}, 400, "2031-01-01"},
		{"another name in the header", "one", tokenA, newCall("echo", "{}"), append([]string{"Mcp-Name", "wait"}, modern...), 400, "Mcp-Name"},
	} {
		status, body, _ := s.at(c.name).post(t, c.token, c.body, c.header...)
		wantFailure(t, c.what, status, c.status, body, c.says)
	}
	// Unknown methods and members pass.
	status, body, _ := s.at("own").post(t, tokenA, `{"jsonrpc":"2.0","id":"an \"id\" <&>","method":"x-unknown/method","params":{"_meta":{"progressToken":"p","other":1.50}},"more":1}`, id...)
	if status != 200 || !strings.Contains(string(body), `"other":1.5`) || !strings.Contains(string(body), `"id":"an \"id\" \u003c\u0026\u003e"`) {
		t.Errorf("an unknown method: %d %s", status, body)
	}
	for _, body := range []string{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}`, `{"jsonrpc":"2.0","id":"server-9","result":{}}`, `{"jsonrpc":"2.0","method":"notifications/x"}`} {
		if status, answer, _ := s.at("own").post(t, tokenA, body, id...); status != 202 || len(answer) > 0 {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
	if got := s.sessions(t, "b"); len(got) != 0 {
		t.Errorf("sessions of b: %q", got)
	}
}

// Cancelled calls of one client do not touch those of another, and the server hears of them. Nor does the end
// of the token with which the server was started.
func TestServedCancel(t *testing.T) {
	s := served(t, "  one: "+fmt.Sprintf(fixture, "", "1m", "shared")+"\n")
	a, b := s.at("one").connect(t, tokenA, "2025-11-25", nil), s.at("one").connect(t, tokenA2, "2025-11-25", nil)
	kept := make(chan error, 1)
	go func() {
		_, err := b.CallTool(t.Context(), callParams("wait", args{"seconds": 1.5}))
		kept <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := a.CallTool(ctx, callParams("wait", args{})); err == nil {
		t.Error("a cancelled call has a result")
	}
	if err := <-kept; err != nil {
		t.Errorf("the call of another client: %v", err)
	}
	go func() {
		_, err := b.CallTool(t.Context(), callParams("wait", args{"seconds": 1}))
		kept <- err
	}()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, uids, _ := strings.Cut(string(status), "\nUid:")
	var owner int
	if _, err := fmt.Sscan(uids, &owner); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tokens", "boxd.yaml"} { // the daemon reads them again with its own rights
		if err := os.Chown(filepath.Join(s.Dir, name), owner, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "tokens"), []byte(strings.Replace(tokensFile, tokenA+" ", strings.Repeat("x", 24)+" ", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for deadline, status := time.Now().Add(10*time.Second), 0; status != 401; time.Sleep(10 * time.Millisecond) {
		if status, _, _ = s.at("none").post(t, tokenA, newList, modern...); time.Now().After(deadline) {
			t.Fatalf("a token that was removed: %d", status)
		}
	}
	if err := <-kept; err != nil {
		t.Errorf("the call of another client, when the token was removed with which the server was started: %v", err)
	}
	_, body, _ := s.at("one").post(t, tokenA2, newCall("die", "{}"), modern...)
	if f := wantPhase(t, "the end", body, gateway.PhaseLost); strings.Count(strings.Join(f.Stderr, "\n"), "cancelled") != 1 {
		t.Errorf("stderr of the server: %q", f.Stderr)
	}
}

// boxd mcp serve needs no configuration.
func TestServeCommand(t *testing.T) {
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, "allowed_mount_roots: ["+testdata+"]\n")
	boxd, _ := testutil.BuildBinaries(t)
	serve := func(args ...string) *exec.Cmd {
		cmd := exec.Command(boxd, append(append([]string{"mcp", "serve", "--socket", s.Socket(), "-v", testdata + ":/opt/testdata:ro"}, args...), "--", "python3", "/opt/testdata/fixture.py")...)
		cmd.Stderr = os.Stderr
		return cmd
	}
	asked := false
	//lint:ignore SA1019 servers in boxes still ask for it
	o := &sdk.ClientOptions{CreateMessageHandler: func(_ context.Context, r *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
		asked = true
		//lint:ignore SA1019 as above
		return &sdk.CreateMessageResult{Model: "m", Role: "assistant", Content: &sdk.TextContent{Text: "sampled"}}, nil
	}}
	c := connect(t, &sdk.CommandTransport{Command: serve("--stdio", "--allow-tool", "test_sampling")}, "", o)
	mention(t, textOf(call(t, c, "test_sampling", args{"prompt": "p"}, nil)), "sampled")
	if list, err := c.ListTools(t.Context(), nil); err != nil || len(list.Tools) != 1 || !asked {
		t.Errorf("tools: %+v %v, asked: %v", list, err, asked)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}

	cmd := serve()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var url, token string
	if _, err := fmt.Fscanf(out, "%s\nAuthorization: Bearer %s\n", &url, &token); err != nil {
		t.Fatal(err)
	}
	there := &server{url: strings.TrimSuffix(url, "/mcp"), path: "/mcp"}
	status, body, _ := there.post(t, "wrong", initialize(1))
	wantFailure(t, "a wrong token", status, 403, body, "token is missing or wrong")
	mention(t, textOf(call(t, there.connect(t, token, "", nil), "test_simple_text", args{}, nil)), "simple text")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // 130
	if got := s.sessions(t, "default"); len(got) != 0 {
		t.Errorf("boxes stay: %q", got)
	}
}
