package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/testutil"
)

// oldState is where the state directory of f88faa3 was: its records name workspaces by their paths.
const oldState = "/tmp/boxd-e2e-f88faa3/state"

// The state directory is one that the daemon of f88faa3 left when its host was restarted. Sessions,
// processes, workspaces, a workspace with a size, and those of LangBot with a skill go on.
func TestDaemonUpgrade(t *testing.T) {
	testutil.RequireRoot(t)
	top := filepath.Dir(oldState)
	if err := os.RemoveAll(top); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	if err := os.MkdirAll(oldState, 0o755); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, "--langbot-listen", "127.0.0.1:0")
	d.dir = oldState
	d.env = append(d.env, "BOXD_SOCKET="+d.socket())
	if out, err := exec.Command("tar", "--sparse", "--same-owner", "-xzf", "testdata/f88faa3-state.tar.gz", "-C", d.dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// It served as nobody, whom no daemon shares any more. The message says what to do.
	refusal := d.run("serve", "--state-dir", d.dir)
	command := regexp.MustCompile(`chown -hR --from=65534:65534 (\d+):(\d+) ` + d.dir).FindString(refusal.stderr)
	if refusal.status != 125 || command == "" {
		t.Fatalf("%v, want a command that changes the owner", refusal)
	}
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	d.start()

	d.says(0, "plain\nsized\nwork\n", "sessions", "ls", "-q")
	d.says(0, "kept by f88faa3\n", "exec", "plain", "--no-create", "--", "cat", "note")
	d.says(0, "plain 67108864 true\nsized 536870912 true\nwork 67108864 true\n", "sessions", "ls", "--format", "{{.id}} {{.memory}} {{.persistent}}")
	d.says(0, "limited\n", "exec", "sized", "--no-create", "--", "cat", "note")
	d.says(1, "", "exec", "sized", "--no-create", "--", "sh", "-c", "exec 2>&-; head -c 4M /dev/zero > more")
	d.says(0, "done exited 3\nticker failed \n", "ps", "-a", "work", "--format", "{{.id}} {{.state}} {{.exit_code}}")

	address := regexp.MustCompile(`protocol=langbot network=tcp address=(\S+)`).FindStringSubmatch(d.logged())
	if address == nil {
		t.Fatalf("the log names no address of LangBot's protocol:\n%s", d.logged())
	}
	header := http.Header{"X-LangBot-Instance-Id": {"inst"}}
	conn, resp, err := websocket.DefaultDialer.DialContext(t.Context(), "ws://"+address[1]+"/rpc/ws", header)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	defer conn.Close()
	call := func(action string, data map[string]any, want ...string) {
		t.Helper()
		request := map[string]any{"seq_id": 1, "action": action, "data": data,
			"context": map[string]any{"instance_uuid": "inst", "workspace_uuid": "ws-old", "placement_generation": 3}}
		var answer json.RawMessage
		if err := conn.WriteJSON(request); err != nil {
			t.Fatal(err)
		}
		if err := conn.ReadJSON(&answer); err != nil {
			t.Fatal(err)
		}
		for _, part := range want {
			if !strings.Contains(string(answer), part) {
				t.Errorf("%s: %s, want %q in it", action, answer, part)
			}
		}
	}
	call("box_init", map[string]any{"limits": map[string]any{"max_sessions": 64}}, `"initialized":true`)
	call("box_exec", map[string]any{"session_id": "chat", "cmd": "cat kept.txt", "timeout_sec": 20, "persistent": true, "cpus": 1.0, "memory_mb": 128, "pids_limit": 64},
		`"stdout":"kept by f88faa3"`, `"exit_code":0`)
	call("box_list_skills", map[string]any{}, `"name":"old-skill"`, `"description":"made by f88faa3"`)
}
