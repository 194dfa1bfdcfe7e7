package mcp

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// block returns the code of the document in one language.
func block(t *testing.T, language string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(text)
	if found == nil {
		t.Fatalf("docs/mcp.md has no code in %s", language)
	}
	return string(found[1])
}

// The quick start of docs/mcp.md works as it stands there, but for the port and the directories of the
// daemon.
func TestQuickStart(t *testing.T) {
	testutil.RequireRoot(t)
	testutil.RequireProgram(t, "openssl")
	testutil.RequireProgram(t, "curl")
	const serve = `boxd serve --listen 127.0.0.1:8420 --tokens-file "$PWD/tokens" &`
	before, after, found := strings.Cut(block(t, "sh"), serve+"\n")
	if !found {
		t.Fatalf("no line %q", serve)
	}
	dir := testutil.ReachableDir(t, "")
	boxd, _ := testutil.BuildBinaries(t)
	shell := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
		cmd.Dir = dir
		return output(t, cmd)
	}
	shell(before)
	d, c := daemon.ForTest(t, daemon.Config{Dir: dir, Args: []string{"--listen", "127.0.0.1:0", "--tokens-file", filepath.Join(dir, "tokens")}})
	address := addressOf(t, d)
	mention(t, shell(strings.ReplaceAll(after, "127.0.0.1:8420", address)), `"protocolVersion":"2025-11-25"`, `"name":"boxd"`, "isolated Linux system")

	var config struct {
		Servers map[string]struct {
			Command string
			Args    []string
		} `json:"mcpServers"`
	}
	if err := json.Unmarshal([]byte(block(t, "json")), &config); err != nil {
		t.Fatal(err)
	}
	server := config.Servers["boxd"]
	if server.Command != "boxd" {
		t.Fatalf("the program of the configuration: %+v", config)
	}
	cmd := exec.Command(boxd, server.Args...)
	cmd.Env = []string{"BOXD_SOCKET=" + d.Socket()}
	desktop := connect(t, &sdk.CommandTransport{Command: cmd}, "", nil)
	mention(t, textOf(call(t, desktop, "exec", args{"command": "pwd"}, nil)), "/workspace")
	if list, err := c.Sessions(t.Context()); err != nil || len(list) != 1 || !strings.HasPrefix(list[0].ID, "mcp-uid-0-test-program-") {
		t.Errorf("sessions: %+v %v", list, err)
	}
}
