package langbot

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/gorilla/websocket"
)

// stdioBox is "boxd langbot --stdio" and what its parent does.
type stdioBox struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	stdout io.Closer
	out    *protocol.LineReader
	relays string // address
	stderr chan string
	seq    int
	at     Context
}

var relaysAddress = regexp.MustCompile(`^boxd: relays are served at (\S+)$`)

// stdioBox starts the bridge to w.
func (w *world) stdioBox(at Context, env ...string) *stdioBox {
	w.t.Helper()
	boxd, _ := testutil.BuildBinaries(w.t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b := &stdioBox{t: w.t, stderr: make(chan string, 1), at: at}
	b.cmd = exec.CommandContext(ctx, boxd, "langbot", "--stdio", "--socket", w.Socket(), "--ws-control-port", "0")
	b.cmd.Env = append([]string{"LANGBOT_BOX_TRUSTED_INSTANCE_UUID=" + at.Instance}, env...)
	var err error
	if b.in, err = b.cmd.StdinPipe(); err != nil {
		w.t.Fatal(err)
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	b.out, b.stdout = protocol.NewLineReader(out), out
	stderr, err := b.cmd.StderrPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { b.in.Close(); _ = b.cmd.Wait(); cancel() })
	lines := bufio.NewReader(stderr)
	first, _ := lines.ReadString('\n')
	m := relaysAddress.FindStringSubmatch(strings.TrimSpace(first))
	if m == nil {
		w.t.Fatalf("stderr begins with %q", first)
	}
	b.relays = m[1]
	go func() {
		rest, _ := io.ReadAll(lines)
		b.stderr <- string(rest)
	}()
	return b
}

// call does an action that must succeed, as the only one under way.
func (b *stdioBox) call(action string, data, out any) {
	b.t.Helper()
	b.seq++
	request, err := json.Marshal(object{"seq_id": b.seq, "action": action, "data": data, "context": b.at})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := protocol.WriteMessage(b.in, request); err != nil {
		b.t.Fatal(err)
	}
	msg, err := b.out.Next()
	if err != nil {
		b.t.Fatalf("%s: %v", action, err)
	}
	var reply Reply
	if err := json.Unmarshal(msg, &reply); err != nil || reply.Seq != int64(b.seq) || reply.Code != 0 {
		b.t.Fatalf("%s: %.500s, %v", action, msg, err)
	}
	if out != nil {
		if err := json.Unmarshal(reply.Data, out); err != nil {
			b.t.Fatal(err)
		}
	}
}

// end waits for the end and returns the exit status and the rest of stderr.
func (b *stdioBox) end() (int, string) {
	b.t.Helper()
	stderr := <-b.stderr
	err := b.cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		b.t.Fatal(err)
	}
	return b.cmd.ProcessState.ExitCode(), stderr
}

// TestBridge: the whole of the protocol on stdin and stdout of a child.
func TestBridge(t *testing.T) {
	t.Parallel()
	w := begin(t)
	other := w.bot("i", "w") // of another instance, on the daemon's own address
	other.call("box_create_session", spec("stays", nil))
	b := w.stdioBox(Context{"child", "w", 1}, `LANGBOT_BOX_CONFIG={"limits":{"max_sessions":2}}`, "LANGBOT_BOX_CONTROL_TOKEN="+strings.Repeat("t", 32))
	b.call("__ping", object{}, nil)
	b.call("box_init", object{}, nil)
	var status struct{ Limits map[string]int }
	if b.call("box_status", object{}, &status); status.Limits["max_sessions"] != 2 {
		t.Errorf("limits %v: the configuration of the environment is missing", status.Limits)
	}
	// Both are longer than a line may be.
	text := strings.Repeat("é", 100_000)
	s := spec("s", object{"cmd": "printf %s \"$TEXT\" | wc -c; printf 'é%.0s' $(seq 100000)", "env": object{"TEXT": text[:100_000]}})
	var r result
	b.call("box_exec", s, &r)
	if want := "100000\n" + text; r.Stdout != want {
		t.Errorf("%d bytes, want %d: %v", len(r.Stdout), len(want), r)
	}
	b.call("box_start_managed_process", object{"session_id": "s", "spec": object{"process_id": "p", "command": "cat"}}, nil)

	h := b.at.Headers()
	d := Dialer{Base: "ws://" + b.relays}
	session := physicalOf(b.at, "s")
	var refused *StatusError
	if _, err := d.Relay(t.Context(), h.Clone(), session, "p"); !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized {
		t.Errorf("a relay without the token: %v", err)
	}
	d.Token = strings.Repeat("t", 32)
	ws, err := d.Relay(t.Context(), h, session, "p")
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	line := strings.Repeat("x", 200_000)
	say(t, ws, line)
	if got := next(t, ws); got != line+"\n" {
		t.Errorf("%d bytes came back", len(got))
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		answer, err := http.Get("http://" + b.relays + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK || !bytes.HasPrefix(body, []byte("{")) {
			t.Errorf("%s: status %d, %.200s", path, answer.StatusCode, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()

	b.in.Close()
	if messages, code := rest(t, ws); len(messages) != 0 || code != websocket.CloseNormalClosure {
		t.Errorf("the relay got %q and code %d", messages, code)
	}
	if status, stderr := b.end(); status != 0 || stderr != "" {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	sessions, err := w.every.Sessions(t.Context())
	if err != nil || len(sessions) != 1 {
		t.Errorf("%d sessions are left, %v", len(sessions), err)
	}
	if got := other.sh(spec("stays", nil), "echo here"); got != "here" {
		t.Errorf("the session of another instance says %q", got)
	}
}

// physicalOf is the id of a session of a workspace.
func physicalOf(at Context, session string) string {
	return protocol.Context{Instance: at.Instance, Workspace: at.Workspace, Generation: at.Generation}.Runtime() + "-" + session
}

// TestBridgeLosesDaemon: one line, and a status that says so.
func TestBridgeLosesDaemon(t *testing.T) {
	w := begin(t)
	b := w.stdioBox(Context{"i", "w", 1})
	b.call("box_create_session", spec("s", nil), nil)
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	status, stderr := b.end()
	if status != 1 || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "boxd: the connection to the daemon is lost") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
}

// TestBridgeParentGone: one that ends it with a signal, or dies with an answer under
// way, leaves no sessions behind.
func TestBridgeParentGone(t *testing.T) {
	w := begin(t)
	for _, how := range []string{"signal", "death"} {
		b := w.stdioBox(Context{"i", "w", 1})
		b.call("box_create_session", spec("s", nil), nil)
		if how == "signal" {
			if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		} else {
			b.stdout.Close()
			if err := protocol.WriteMessage(b.in, []byte(`{"seq_id":99,"action":"__ping","data":{}}`)); err != nil {
				t.Fatal(err)
			}
			b.in.Close()
		}
		if status, stderr := b.end(); status != 0 || how == "signal" && stderr != "" {
			t.Errorf("%s: status %d, stderr %q", how, status, stderr)
		}
		if sessions, err := w.every.Sessions(t.Context()); err != nil || len(sessions) != 0 {
			t.Errorf("%s: %d sessions are left, %v", how, len(sessions), err)
		}
	}
}
