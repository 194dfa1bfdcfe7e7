package mcp

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// named is "boxd mcp serve NAME" for a token.
func (s *server) named(t *testing.T, token string, args ...string) *exec.Cmd {
	t.Helper()
	boxd, _ := testutil.BuildBinaries(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.Command(boxd, append([]string{"mcp", "serve", "--url", s.url, "--token-file", file}, args...)...)
}

// A program on stdin and stdout uses a server of the daemon as any client does: the server asks it back, the
// end of stdin ends the session with its box, and another session takes the place of one that the daemon has ended.
func TestNamed(t *testing.T) {
	s := served(t, "  session: "+fmt.Sprintf(fixture, "", "1s", "session")+"\n  theirs: {command: [x], tenants: [b]}\n")
	for _, c := range []struct{ token, name, want string }{
		{tokenA, "none", `boxd: there is no server "none": mcp_servers of the daemon's configuration has session` + "\n"},
		{tokenA, "theirs", `boxd: there is no server "theirs": mcp_servers of the daemon's configuration has session` + "\n"},
		{tokenRead, "session", "may not use this"},
		{"nobody's", "session", "token"},
	} {
		out, err := s.named(t, c.token, c.name).CombinedOutput()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 125 || !strings.Contains(string(out), c.want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: %v\n%s, want %q", c.name, err, out, c.want)
		}
	}

	asked := 0
	o := &sdk.ClientOptions{ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		asked++
		return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"username": "ada", "email": "a@b.c"}}, nil
	}}
	cmd := s.named(t, tokenA, "session")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	c := connect(t, &sdk.CommandTransport{Command: cmd}, "2025-11-25", o)
	if text := textOf(call(t, c, "test_elicitation", args{"message": "Who?"}, nil)); !strings.Contains(text, "accept") || !strings.Contains(text, "ada") || asked != 1 {
		t.Errorf("elicitation: %q after %d questions", text, asked)
	}
	var before, after whoami
	call(t, c, "whoami", args{}, &before)
	awaitNoSessions(t, s) // it was idle
	call(t, c, "whoami", args{}, &after)
	if before.Started != 1 || after.Started != 1 {
		t.Errorf("%+v, and after an idle time %+v", before, after)
	}
	c.Close()
	awaitNoSessions(t, s)
	if !strings.Contains(stderr.String(), "the daemon has ended the session") {
		t.Errorf("stderr: %s", stderr.String())
	}
}

// awaitNoSessions waits until the tenant a has no sessions.
func awaitNoSessions(t *testing.T, s *server) {
	t.Helper()
	for deadline := time.Now().Add(testutil.Patience()); ; time.Sleep(20 * time.Millisecond) {
		left := s.sessions(t, "a")
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("sessions %q are left", left)
		}
	}
}
