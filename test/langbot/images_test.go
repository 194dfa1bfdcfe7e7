package langbot

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/gorilla/websocket"
)

// hostFiles copies programs of the host, with their libraries, into a tree, and returns it as an archive.
func hostFiles(t *testing.T, note string, programs ...string) *os.File {
	t.Helper()
	dir := t.TempDir()
	script := `set -e
cd "$1"; mkdir tree; echo "$2" >tree/note; shift 2
for p in "$@"; do cp -L --parents "$p" $(ldd "$p" | grep -o '/[^ ]*\.so[^ ]*' | sort -u) tree; done
tar -C tree -cf image.tar .`
	args := append([]string{"-c", script, "sh", dir, note}, programs...)
	if out, err := exec.CommandContext(t.Context(), "sh", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(filepath.Join(dir, "image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// mcpServer is an MCP server over stdio, as far as LangBot's first message to one.
const mcpServer = `require('readline').createInterface({input: process.stdin}).on('line', line => {
	const m = JSON.parse(line);
	console.log(JSON.stringify({jsonrpc: '2.0', id: m.id, result: {serverInfo: {name: 'test', version: process.version}, method: m.method}}));
})`

// TestImages: the names that the operator has mapped mean images of the store, others the host, and a request never
// pulls.
func TestImages(t *testing.T) {
	t.Parallel()
	node := testutil.RequireProgram(t, "node")
	registry, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	called := make(chan bool, 1)
	go func() {
		if c, err := registry.Accept(); err == nil {
			c.Close()
			called <- true
		}
	}()
	w := begin(t, "--config", configFile(t, fmt.Sprintf(`
images: {registries: {"%[1]s": {insecure: true}}}
profiles: {langbot: {images: ["*", "host"], pull: missing, isolation: %[2]s}}
langbot:
  image_names: {"python:3.11-slim": "local/python:1", "node:20-slim": "local/node:1", "gone:1": "%[1]s/gone:1"}
`, registry.Addr(), isolation)))
	api, err := client.New(client.Options{Socket: w.Socket(), Tenant: "langbot"})
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	for name, programs := range map[string][]string{"local/python:1": {"/bin/sh", "/bin/cat"}, "local/node:1": {"/bin/sh", "/bin/cat", node}} {
		if _, err := api.ImportImage(t.Context(), hostFiles(t, name, programs...), client.ImportOptions{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	b := w.bot("i", "w")
	for image, want := range map[string]string{"python:3.11-slim": "local/python:1", "node:20-slim": "local/node:1", "rockchin/langbot-sandbox:latest": "host", "python:3.12-slim": "host"} {
		s := spec("s-"+strings.NewReplacer(":", "-", "/", "-").Replace(image), object{"image": image})
		if got := b.sh(s, "if [ -e /note ]; then cat /note; else echo host; fi"); got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
	text := b.refused("BoxValidationError", "box_exec", spec("gone", object{"image": "gone:1", "cmd": "true"}))
	if !strings.Contains(text, "image is not present") || !strings.Contains(text, "gone:1") || strings.Contains(text, "\n") {
		t.Errorf("%q", text)
	}
	select {
	case <-called:
		t.Error("a request at this door asked a registry")
	default:
	}

	// An MCP server of an image that has little else.
	asked := spec("mcp-shared", object{"image": "node:20-slim", "network": "on", "persistent": true})
	b.call("box_create_session", asked)
	b.launch("mcp-shared", "server", node, "-e", mcpServer)
	ws := b.attach("mcp-shared", "server")
	for id, method := range []string{"initialize", "tools/list"} {
		if err := ws.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q}`, id, method)); err != nil {
			t.Fatal(err)
		}
		var answer struct {
			ID     int
			Result struct{ Method string }
		}
		_, line, err := ws.ReadMessage()
		if err == nil {
			err = json.Unmarshal(line, &answer)
		}
		if err != nil || answer.ID != id || answer.Result.Method != method {
			t.Fatalf("%q, %v", line, err)
		}
	}
	if got := b.sh(asked, "cat /note"); got != "local/node:1" {
		t.Errorf("%q", got)
	}
}
