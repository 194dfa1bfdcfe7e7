package cli

import (
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// langbotDaemon answers each action with success. It is a WebSocket server without a
// library, for short messages.
type langbotDaemon struct {
	t       *testing.T
	socket  string
	status  int  // of the answer to the upgrade, if not 101
	dies    bool // instead of answering
	actions []string
	served  chan struct{} // has an element when a connection has ended
}

func newLangbotDaemon(t *testing.T) *langbotDaemon {
	d := &langbotDaemon{t: t, socket: filepath.Join(t.TempDir(), "s"), served: make(chan struct{}, 1)}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(d)
	server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return d
}

func (d *langbotDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.status != 0 {
		http.Error(w, "Unauthorized", d.status)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		d.t.Error(err)
		return
	}
	defer func() { conn.Close(); d.served <- struct{}{} }()
	// RFC 6455, 4.2.2.
	key := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(key[:]))
	for {
		msg := readMasked(rw)
		if msg == nil {
			return
		}
		var req struct {
			Seq    json.RawMessage `json:"seq_id"`
			Action string
		}
		if err := json.Unmarshal(msg, &req); err != nil {
			d.t.Error(err)
		}
		d.actions = append(d.actions, req.Action)
		if d.dies {
			return
		}
		answer := fmt.Sprintf(`{"seq_id":%s,"code":0,"message":"success","data":{}}`, req.Seq)
		conn.Write(append([]byte{0x81, byte(len(answer))}, answer...))
	}
}

// readMasked returns the next text message, or nil.
func readMasked(r io.Reader) []byte {
	var head [2]byte
	io.ReadFull(r, head[:])
	size := uint16(head[1] & 0x7f)
	if size == 126 {
		binary.Read(r, binary.BigEndian, &size)
	}
	var mask [4]byte
	io.ReadFull(r, mask[:])
	msg := make([]byte, size)
	if _, err := io.ReadFull(r, msg); err != nil || head[0] != 0x81 {
		return nil
	}
	for i := range msg {
		msg[i] ^= mask[i%4]
	}
	return msg
}

// langbotEnv is the environment that LangBot gives to a child process.
func langbotEnv(v *invocation, more map[string]string) {
	env := map[string]string{"LANGBOT_BOX_TRUSTED_INSTANCE_UUID": "inst"}
	for k, value := range more {
		env[k] = value
	}
	v.LookupEnv = func(key string) (string, bool) {
		value, ok := env[key]
		return value, ok
	}
}

func TestLangbot(t *testing.T) {
	const ping = `{"seq_id":7,"action":"__ping","data":{}}` + "\n"
	for _, c := range []struct {
		name, config, stdin string
		dies                bool
		status              int
		actions, stdout     string
		stderr              string // begins with; "" wants none
	}{
		{"nothing to do", "", "", false, 0, "box_shutdown", "", ""},
		{"a message", "", ping, false, 0, "__ping box_shutdown", `{"seq_id":7,"code":0,"message":"success","data":{}}` + "\n", ""},
		{"configuration", " {\n} ", "", false, 0, "box_init box_shutdown", "", ""},
		{"no object", "[1]", "", false, 0, "box_shutdown", "", "boxd: warning: LANGBOT_BOX_CONFIG: must be a JSON object"},
		{"no JSON", "{", "", false, 0, "box_shutdown", "", "boxd: warning: LANGBOT_BOX_CONFIG: must be a JSON object"},
		{"the daemon dies", "", ping, true, 1, "__ping", "", "boxd: the connection to the daemon is lost"},
		{"broken stdin", "", `{"type":"chunk_end"}` + "\n", false, 1, "box_shutdown", "", "boxd: stdin: reading a message in pieces"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newLangbotDaemon(t)
			d.dies = c.dies
			v := newInvocation(t)
			langbotEnv(v, map[string]string{"LANGBOT_BOX_CONFIG": c.config, "BOXD_SOCKET": d.socket})
			v.Stdin = strings.NewReader(c.stdin)
			if c.dies {
				open, w := io.Pipe()
				defer w.Close()
				v.Stdin = io.MultiReader(v.Stdin, open)
			}
			status := v.Main([]string{"langbot", "--stdio", "--ws-control-port", "0"})
			<-d.served
			first, stderr, _ := strings.Cut(v.stderr.String(), "\n") // one line names the port
			if strings.Contains(stderr, "relays are served at") {
				first, stderr = strings.TrimSpace(stderr), first+"\n"
			}
			if !strings.HasPrefix(first, "boxd: relays are served at 127.0.0.1:") {
				t.Errorf("stderr begins with %q", first)
			}
			if status != c.status || v.stdout.String() != c.stdout || !strings.HasPrefix(stderr, c.stderr) || (c.stderr == "") != (stderr == "") || strings.Count(stderr, "\n") > 1 {
				t.Errorf("status %d, stdout %q, stderr %q", status, v.stdout.String(), stderr)
			}
			if got := strings.Join(d.actions, " "); got != c.actions {
				t.Errorf("the daemon saw %q, want %q", got, c.actions)
			}
		})
	}
}

// TestLangbotRefused: a refusal is one line, before anything is sent.
func TestLangbotRefused(t *testing.T) {
	d := newLangbotDaemon(t)
	d.status = http.StatusUnauthorized
	none := filepath.Join(t.TempDir(), "none")
	const stdio = "langbot --stdio --ws-control-port 0"
	for _, c := range []struct {
		args   string
		env    map[string]string
		stderr string
	}{
		{"langbot", nil, "--stdio is missing"},
		{stdio + " x", nil, "\"x\": is one argument too many: boxd langbot;"},
		{stdio, map[string]string{"LANGBOT_BOX_TRUSTED_INSTANCE_UUID": ""}, `LANGBOT_BOX_TRUSTED_INSTANCE_UUID "": must be the id`},
		{stdio, map[string]string{"LANGBOT_BOX_TRUSTED_INSTANCE_UUID": "a b"}, `LANGBOT_BOX_TRUSTED_INSTANCE_UUID "a b": must be the id`},
		{stdio, map[string]string{"LANGBOT_BOX_CONTROL_TOKEN": "short"}, "LANGBOT_BOX_CONTROL_TOKEN (secret): must have 32"},
		{stdio, map[string]string{"LANGBOT_BOX_CONTROL_TOKEN": strings.Repeat("a ", 20)}, "LANGBOT_BOX_CONTROL_TOKEN (secret): must have 32"},
		{stdio + " --host 0.0.0.0", nil, `--host "0.0.0.0": must be a loopback address`},
		{stdio + " --host example.com", nil, `--host "example.com": must be a loopback address`},
		{"langbot --stdio --ws-control-port 65536", nil, "--ws-control-port"},
		{stdio, map[string]string{"BOXD_SOCKET": none}, "is the daemon running?"},
		{stdio, map[string]string{"BOXD_SOCKET": d.socket}, "the daemon answers 401: Unauthorized"},
	} {
		v := newInvocation(t)
		langbotEnv(v, c.env)
		status := v.Main(strings.Split(c.args, " "))
		_, line, found := strings.Cut(v.stderr.String(), "relays are served at")
		if _, after, _ := strings.Cut(line, "\n"); found {
			line = after
		} else {
			line = v.stderr.String()
		}
		if status != 125 || v.stdout.Len() != 0 || strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "boxd: ") || !strings.Contains(line, c.stderr) {
			t.Errorf("boxd %s, %v: status %d, stdout %q, stderr %q, want %q", c.args, c.env, status, v.stdout.String(), line, c.stderr)
		}
	}
}

// TestLangbotPortIsTaken: without relays, everything else works.
func TestLangbotPortIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := newLangbotDaemon(t)
	v := newInvocation(t)
	langbotEnv(v, nil)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	status := v.Main([]string{"langbot", "--stdio", "--socket", d.socket, "--ws-control-port", port})
	if stderr := v.stderr.String(); status != 0 || !strings.HasPrefix(stderr, "boxd: warning: relays are not served: ") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	<-d.served
}
