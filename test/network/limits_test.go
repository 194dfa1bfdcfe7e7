package network

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
)

const limited = streaming + `  bytes:
    network: true
    network_rules: {public: false, allow: ["good.example:7000"], limits: {bytes: 4M}}
  connections:
    network: true
    network_rules: {public: false, allow: ["good.example:7000", good.example], limits: {connections: 5}}
  bandwidth:
    network: true
    network_rules: {public: false, allow: ["good.example:7000"], limits: {bandwidth: 1M}}
  idle:
    network: true
    network_rules: {public: false, allow: ["good.example:7000"], limits: {idle: 1s}}
`

func networkOf(t *testing.T, c *client.Client, id string) apitypes.Network {
	t.Helper()
	n, err := c.Network(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestBytes: of what a box may move, not one byte more arrives, in whatever directions and
// however many connections.
func TestBytes(t *testing.T) {
	_, c := startDaemon(t, limited)
	const limit = 4 << 20
	for i, names := range [][]string{
		{"connect/up/good.example"}, {"connect/down/good.example"},
		{"connect/up/good.example", "connect/down/good.example", "socks/up/good.example", "socks/down/good.example"},
	} {
		id := fmt.Sprint("s", i)
		s := newStreams(t, 0)
		startStreams(t, c, id, "p", session("bytes"), names...)
		logs, err := c.Logs(t.Context(), id, "p", client.LogOptions{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		// The line of each stream that has ended.
		down, counted := int64(0), int64(0)
		text := readLines(t, logs, len(names))
		for _, line := range text {
			n, err := strconv.ParseInt(strings.Fields(line)[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			down += n
		}
		up, first := int64(0), int64(0) // first: the line with the name, which streams do not count
		for name, n := range s.ended(t, names...) {
			if strings.Contains(name, "/up/") {
				up += n
			}
			s.mu.Lock()
			if _, began := s.bytes[name]; began { // there may have been nothing left for it
				first += int64(len(name)) + 1
			}
			s.mu.Unlock()
		}
		await(t, "all is counted", func() string {
			counted = 0
			for _, r := range networkOf(t, c, id).Recent {
				counted += r.In + r.Out
			}
			if counted != limit {
				return fmt.Sprintf("%d bytes of %d", counted, limit)
			}
			return ""
		})
		if up+down+first > limit {
			t.Errorf("%s: %d bytes arrived outside and %d in the box; the limit is %d", id, up+first, down, limit)
		}
		t.Logf("%s: %d of %d bytes arrived", id, up+down+first, limit)
		if got := execute(t, c, id, apitypes.ExecRequest{Shell: "curl -sS -x http://127.0.0.1:3128 -p http://good.example:7000"}); got.Status == 0 || !strings.Contains(got.Stderr, "503") {
			t.Errorf("%s: a further connection: %+v", id, got)
		}
	}
	// The limit is each session's own.
	s := newStreams(t, 1<<20)
	startStreams(t, c, "fresh", "p", session("bytes"), "connect/down/good.example")
	s.flowing(t, "connect/down/good.example")
}

const opener = `
import socket, sys
kept = []
def connect():
    s = socket.create_connection(("127.0.0.1", 3128))
    s.sendall(b"CONNECT good.example:7000 HTTP/1.1\r\nHost: good.example:7000\r\n\r\n")
    answer = s.recv(4096).split()[1].decode()
    kept.append(s)
    return answer
print(*[connect() for _ in range(8)])
s = kept.pop(0)
s.shutdown(socket.SHUT_RDWR)
s.close()
while (again := connect()) == "503":  # until the proxy has seen the end
    kept.pop().close()
print(again, connect())
`

// hold serves rawPort with connections that stay until the client ends them.
func hold(t *testing.T) *atomic.Int64 {
	var open atomic.Int64
	world.onRaw(t, func(c net.Conn) {
		open.Add(1)
		io.Copy(io.Discard, c)
		c.Close()
		open.Add(-1)
	})
	return &open
}

func TestConnections(t *testing.T) {
	_, c := startDaemon(t, limited)
	hold(t)
	got := execute(t, c, "s", apitypes.ExecRequest{Argv: []string{"python3", "-c", opener}, Session: session("connections")})
	if want := "200 200 200 200 200 503 503 503\n200 503\n"; got.Stdout != want {
		t.Errorf("%q %q, want %q", got.Stdout, got.Stderr, want)
	}
}

// TestBandwidth: at no time has more arrived than the rate allows.
func TestBandwidth(t *testing.T) {
	_, c := startDaemon(t, limited)
	const rate = 1 << 20
	s := newStreams(t, 0)
	names := []string{"connect/up/good.example", "socks/up/good.example", "connect/down/good.example"}
	began := time.Now()
	startStreams(t, c, "s", "p", session("bandwidth"), names...)
	s.await(t, "flowing", func() bool { return s.bytes[names[0]]+s.bytes[names[1]] > 2<<20 })
	s.mu.Lock()
	up := s.bytes[names[0]] + s.bytes[names[1]]
	took := time.Since(began)
	s.mu.Unlock()
	// A tenth of a second's worth may come at once; what is sent down counts as well, so this
	// is generous.
	if most := int64(took.Seconds()*rate) + rate/10; up > most {
		t.Errorf("%d bytes in %v, at most %d are allowed", up, took, most)
	}
	t.Logf("%d bytes up in %v", up, took)
}

func TestIdle(t *testing.T) {
	_, c := startDaemon(t, limited)
	hold(t)
	script := `
import socket
s = socket.create_connection(("127.0.0.1", 3128))
s.sendall(b"CONNECT good.example:7000 HTTP/1.1\r\nHost: good.example:7000\r\n\r\n")
print(s.recv(4096).split()[1])
try:
    print(s.recv(1))
except ConnectionResetError:
    print(b"")
`
	got := execute(t, c, "s", apitypes.ExecRequest{Argv: []string{"python3", "-c", script}, Session: session("idle")})
	if got.Stdout != "b'200'\nb''\n" {
		t.Errorf("%q %q", got.Stdout, got.Stderr)
	}
	if n := networkOf(t, c, "s"); len(n.Recent) != 1 || !strings.Contains(n.Recent[0].Reason, "idle") {
		t.Errorf("%+v", n)
	}
}

const greedy = `
import socket
kept = []
def more(first):
    while len(kept) < %d:
        s = socket.socket()
        s.settimeout(0.5)
        try:
            s.connect(("127.0.0.1", 3128))
            s.sendall(first)
        except OSError:
            break  # the backlog is full
        kept.append(s)
%s
print("full", len(kept), flush=True)
import threading
threading.Event().wait()
`

// TestGreedy: whatever one box opens, another one gets its answers.
func TestGreedy(t *testing.T) {
	_, c := startDaemon(t, limited)
	open := hold(t)
	for i, how := range []string{
		`more(b"")`, `more(b"GET http://good.exa")`, `more(b"\5")`, `more(b"CONNECT good.example:443 HTTP/1.1\r\nHost: good.example:443\r\n\r\n")`, `more(b"CONNECT good.example:7000 HTTP/1.1\r\nHost: good.example:7000\r\n\r\n")`,
		`more(b"POST http://good.example/ HTTP/1.1\r\nHost: good.example\r\nContent-Length: 100\r\n\r\n")`, `more(b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")`,
	} {
		id := fmt.Sprint("greedy", i)
		spec := session("names")
		if strings.Contains(how, "7000") {
			spec = session("streams")
		}
		if _, err := c.Start(t.Context(), id, apitypes.ProcessRequest{ID: "p", Argv: []string{"python3", "-c", fmt.Sprintf(greedy, 900, how)}, Session: spec}); err != nil {
			t.Fatal(err)
		}
		logs, err := c.Logs(t.Context(), id, "p", client.LogOptions{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s", how, readLines(t, logs, 1))
		// Several at once, from another box, as from the daemon's other callers.
		got := execute(t, c, "modest", apitypes.ExecRequest{Shell: "for i in 1 2 3 4 5; do curl -sS -o /dev/null -w '%{http_code} ' http://good.example/; done", Session: session("names")})
		if got.Stdout != "200 200 200 200 200 " {
			t.Errorf("%s: the other box got %q, %q", how, got.Stdout, got.Stderr)
		}
	}
	t.Logf("%d connections held outside", open.Load())
}

// readLines returns the first n lines that a process prints.
func readLines(t *testing.T, logs *client.Logs, n int) (lines []string) {
	t.Helper()
	defer logs.Close()
	r := bufio.NewReader(logs)
	for range n {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%q: %v", lines, err)
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	return lines
}
