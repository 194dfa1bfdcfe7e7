package bridge

import (
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

func listen(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const secret = "0123456789abcdef0123456789abcdef"

func TestRelays(t *testing.T) {
	d, l := newDaemon(t), listen(t)
	r := start(t, d, func(o *Options) { o.Listener, o.Token = l, secret })
	const path = "/v1/sessions/ws-1-g1-a/managed-process/p%20q/ws"
	header := http.Header{"X-LangBot-Instance-Id": {"inst"}, "X-LangBot-Box-Control-Token": {secret},
		"X-LangBot-Workspace-Id": {"w"}, "X-Boxd-Tenant": {"admin"}, "Authorization": {"Bearer x"}, "Cookie": {"c=1"}}
	dialer := websocket.Dialer{Subprotocols: []string{"mcp"}}
	ws, _, err := dialer.Dial("ws://"+l.Addr().String()+path, header)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	text := strings.Repeat("line", 1<<18)
	ws.WriteMessage(websocket.TextMessage, []byte(text))
	if _, msg, err := ws.ReadMessage(); err != nil || string(msg) != text || ws.Subprotocol() != "mcp" {
		t.Errorf("%d bytes came back, subprotocol %q, %v", len(msg), ws.Subprotocol(), err)
	}
	got := d.headers[0]
	if d.paths[0] != "/langbot"+path || got.Get("X-LangBot-Workspace-Id") != "w" || got.Get("X-LangBot-Instance-Id") != "inst" {
		t.Errorf("the daemon saw %s %v", d.paths[0], got)
	}
	for _, name := range []string{"X-Boxd-Tenant", "Authorization", "Cookie", "X-LangBot-Box-Control-Token", "X-Forwarded-For"} {
		if got.Get(name) != "" {
			t.Errorf("the daemon saw %s: %s", name, got.Get(name))
		}
	}
	stays, _, err := dialer.Dial("ws://"+l.Addr().String()+path, header)
	if err != nil {
		t.Fatal(err)
	}
	defer stays.Close()
	stays.WriteMessage(websocket.TextMessage, []byte("bye"))
	if _, _, err := stays.ReadMessage(); err == nil {
		t.Error("the daemon's end is none")
	}
	r.in.Close() // while clients are connected
	if err := r.end(); err != nil {
		t.Error(err)
	}
	if _, _, err := ws.ReadMessage(); err == nil {
		t.Error("the relay is still there")
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}

// TestWhoMayCome: requests without access are not forwarded.
func TestWhoMayCome(t *testing.T) {
	const relay = "/v1/sessions/s/managed-process/p/ws"
	for _, c := range []struct {
		token, path, instance, shown string
		status                       int
	}{
		{"", "/healthz", "", "", 200},
		{secret, "/readyz", "", "", 200},
		{"", relay, "inst", "", 400}, // forwarded: the daemon demands an upgrade
		{secret, relay, "inst", secret, 400},
		{secret, relay, "inst", "", 401},
		{secret, relay, "inst", secret + "x", 401},
		{"", relay, "other", "", 401},
		{"", relay, "", "", 401},
		{"", "/", "inst", "", 404},
		{"", "/rpc/ws", "inst", "", 404},
		{"", "/v1/status", "inst", "", 404},
		{"", "/v1/sessions/../../v1/status", "inst", "", 404},
		{"", "/v1/sessions/%2e%2e/%2e%2e/v1/status", "inst", "", 404},
		{"", "/v1/sessions/..%2f..%2f..%2fv1%2fstatus", "inst", "", 404},
		{"", "/v1/sessions//x", "inst", "", 404},
		{"", "/langbot/healthz", "inst", "", 404},
		{"", "/healthz/../v1/status", "inst", "", 404},
	} {
		d, l := newDaemon(t), listen(t)
		r := start(t, d, func(o *Options) { o.Listener, o.Token = l, c.token })
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, "GET "+c.path+" HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX-LangBot-Instance-Id: "+c.instance+"\r\nX-LangBot-Box-Control-Token: "+c.shown+"\r\n\r\n")
		answer, err := io.ReadAll(conn)
		conn.Close()
		if status := string(answer[9:min(12, len(answer))]); err != nil || status != map[int]string{200: "200", 400: "400", 401: "401", 404: "404"}[c.status] {
			t.Errorf("%+v: %v, %.200q", c, err, answer)
		}
		if passed := len(d.paths) > 0; passed != (c.status == 200 || c.status == 400) {
			t.Errorf("%+v: the daemon saw %q", c, d.paths)
		}
		if c.status == 200 && !slices.Equal(d.paths, []string{"/langbot" + c.path}) {
			t.Errorf("%+v: the daemon saw %q", c, d.paths)
		}
		r.in.Close()
		if err := r.end(); err != nil {
			t.Error(err)
		}
	}
}

// TestProbeWithoutDaemon: probes report that the daemon does not answer.
func TestProbeWithoutDaemon(t *testing.T) {
	d, l := newDaemon(t), listen(t)
	o := &Options{Dial: d.dial, Listener: l, Instance: "inst", Warn: t.Logf}
	d.http.Close()
	stop := serveRelays(o)
	defer stop()
	answer, err := http.Get("http://" + l.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d", answer.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
}
