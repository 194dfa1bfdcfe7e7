package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/internal/testutil"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Each call of a tool is one line of the audit log, whatever becomes of it, without what the client and the server say.
func TestServedRecords(t *testing.T) {
	s := served(t, "  shared: "+strings.Replace(fmt.Sprintf(fixture, "", "1m", "shared"), "{", "{tools: {allow: [echo, wait, die, test_error_handling]}, ", 1)+
		"\n  request: "+fmt.Sprintf(fixture, "", "1m", "request")+"\n  noprogram: {command: [/no/such/program]}\n"+
		"  pinned: {command: [FIXTURE], TESTDATA, tools: {pin: \"sha256:"+strings.Repeat("0", 64)+"\"}}\n")
	const secret = "a-secret-argument"
	begun := make(chan struct{}, 1)
	c := s.at("shared").connect(t, tokenA, "2025-11-25", &sdk.ClientOptions{ProgressNotificationHandler: func(context.Context, *sdk.ProgressNotificationClientRequest) { begun <- struct{}{} }})
	call(t, c, "echo", args{"text": secret}, nil)
	try(t, c, "test_error_handling", args{"text": secret})
	if _, err := c.CallTool(t.Context(), callParams("whoami", args{"text": secret})); err == nil {
		t.Error("a tool that is not allowed was called")
	}
	newer := s.at("shared").connect(t, tokenA, "2026-07-28", &sdk.ClientOptions{ProgressNotificationHandler: func(context.Context, *sdk.ProgressNotificationClientRequest) { begun <- struct{}{} }})
	for _, c := range []*sdk.ClientSession{c, newer} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			p := callParams("wait", args{"text": secret})
			p.SetProgressToken("p")
			_, err := c.CallTool(ctx, p)
			done <- err
		}()
		<-begun
		cancel()
		if err := <-done; err == nil {
			t.Error("a cancelled call has a result")
		}
	}
	for _, one := range []struct {
		server, body string
		header       []string
	}{
		{"shared", newCall("die", `{"text":"`+secret+`"}`), modern},
		{"shared", newCall("echo", `{"text":"`+secret+`"}`), []string{"Mcp-Session-Id", strings.Repeat("a", 26)}},
		{"shared", strings.Replace(newCall("echo", `{"text":"`+secret+`"}`), `"arguments"`, `"Name":"wait","arguments"`, 1), modern},
		{"request", newCall("no such tool", `{"text":"`+secret+`"}`), modern},
		{"noprogram", newCall("echo", `{"text":"`+secret+`"}`), modern},
		{"pinned", newCall("echo", `{"text":"`+secret+`"}`), modern},
	} {
		s.at(one.server).post(t, tokenA, one.body, one.header...)
	}
	want := []string{
		"mcp-shared mcp done shared echo ok ",
		"mcp-shared mcp failed shared test_error_handling error the tool reports an error",
		"mcp-shared mcp deny shared whoami refused tools.allow does not have it, or its parameters are ambiguous",
		"mcp-shared mcp failed shared wait cancelled by the client, or its connection, its credentials or the daemon has ended",
		"mcp-shared mcp failed shared wait cancelled by the client, or its connection, its credentials or the daemon has ended",
		"mcp-shared mcp failed shared die error phase lost",
		"mcp-shared  deny shared echo refused the gateway has refused the request",
		"mcp-shared mcp deny shared echo refused tools.allow does not have it, or its parameters are ambiguous",
		"mcp-request PROCESS failed request no such tool error error -32602 of JSON-RPC",
		"mcp-noprogram  failed noprogram echo error phase start",
		"mcp-pinned  deny pinned echo refused phase tools",
	}
	slices.Sort(want)
	var got []string
	for deadline := time.Now().Add(testutil.Patience()); ; time.Sleep(20 * time.Millisecond) {
		if got = s.toolCalls(t, secret); len(got) >= len(want) || time.Now().After(deadline) {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// toolCalls are the calls in the audit log, sorted. The log must not have the secret.
func (s *server) toolCalls(t *testing.T, secret string) (calls []string) {
	t.Helper()
	f, err := os.Open(filepath.Join(s.State(), "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, audit.MaxLine)
	for lines.Scan() {
		if strings.Contains(lines.Text(), secret) {
			t.Errorf("the log has an argument: %s", lines.Text())
		}
		var e audit.Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		if e.Action != "mcp-call" {
			continue
		}
		if e.Tenant != "a" || e.Actor != "token:one" || e.Request == "" {
			t.Errorf("%s", lines.Text())
		}
		if strings.HasPrefix(e.Process, "mcp-") { // of one request
			e.Process = "PROCESS"
		}
		calls = append(calls, fmt.Sprint(e.Session, " ", e.Process, " ", e.Decision, " ", e.Details["server"], " ", e.Details["tool"], " ", e.Details["verdict"], " ", e.Reason))
	}
	slices.Sort(calls)
	return calls
}
