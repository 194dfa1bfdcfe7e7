package cli

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

// fakeDaemon answers requests with what the test says, and keeps them.
type fakeDaemon struct {
	t        *testing.T
	socket   string
	requests []seen
	// answer is called for each request, in order.
	answer func(r seen, w http.ResponseWriter)
}

// seen is what a request was, without what net/http adds.
type seen struct {
	what string // method, path and query
	body string
}

func newFakeDaemon(t *testing.T, answer func(r seen, w http.ResponseWriter)) *fakeDaemon {
	t.Helper()
	d := &fakeDaemon{t: t, socket: filepath.Join(t.TempDir(), "s"), answer: answer}
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

func (d *fakeDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		d.t.Error(err)
	}
	one := seen{r.Method + " " + r.URL.RequestURI(), string(body)}
	d.requests = append(d.requests, one)
	d.answer(one, w)
}

// call runs boxd with args against d.
func (d *fakeDaemon) call(args ...string) (status int, v *invocation) {
	d.t.Helper()
	v = newInvocation(d.t)
	return d.callWith(v, args...), v
}

func (d *fakeDaemon) callWith(v *invocation, args ...string) int {
	lookup := v.LookupEnv
	v.LookupEnv = func(key string) (string, bool) {
		if key == "BOXD_SOCKET" {
			return d.socket, true
		}
		return lookup(key)
	}
	return v.Main(args)
}

func (d *fakeDaemon) wantRequests(want ...string) {
	d.t.Helper()
	var got []string
	for _, r := range d.requests {
		got = append(got, strings.TrimSpace(r.what+" "+r.body))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		d.t.Errorf("requests:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func send(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(apitypes.Problem{Status: status, Code: code, Detail: detail, Instance: "req7"})
}

func TestNoDaemon(t *testing.T) {
	d := &fakeDaemon{t: t, socket: filepath.Join(t.TempDir(), "none")}
	for _, args := range [][]string{{"status"}, {"ps"}, {"sessions", "ls"}, {"exec", "s", "--", "true"}, {"logs", "s", "p"}, {"events"}, {"top", "--once"}, {"cp", "s:x", "-"}} {
		status, v := d.call(args...)
		line := v.stderr.String()
		if status != 125 || !strings.HasPrefix(line, "boxd: ") || strings.Count(line, "\n") != 1 || !strings.Contains(line, "is the daemon running?") || !strings.Contains(line, d.socket) {
			t.Errorf("%q: status %d, stderr %q", args, status, line)
		}
	}
}

func TestRemoteUsage(t *testing.T) {
	for _, c := range []struct{ args, stderr string }{
		{"exec", "no command given: SESSION -- CMD [ARG...]"},
		{"exec s", "no command given"},
		{"exec s --", "no command behind --"},
		{"exec s t -- x", "want SESSION -- CMD"},
		{"exec -- x", "want SESSION -- CMD"},
		{"exec .. -- x", `SESSION "..": must be the id of one`},
		{"exec s --memory 0 -- x", "--memory"},
		{"exec s --no-create --memory 1G -- x", "--no-create"},
		{"exec s --profile= -- x", `--profile "": must not be empty`},
		{"exec s --shell -- a b", "--shell with 2 arguments"},
		{"start s -- x", "--id PROCESS is missing"},
		{"stop s", "want boxd stop SESSION PROCESS"},
		{"logs s p --stream both", `--stream "both": must be stdout or stderr`},
		{"logs s p --offset -1", "--offset -1: must be an offset"},
		{"logs s p --since -1h", `--since "-1h": must be a duration`},
		{"logs s p --since 4096", "--offset takes a position"},
		{"logs s p --tail x", `--tail "x": must be a number of lines`},
		{"logs s p --tail -1", `--tail "-1": must be a number of lines`},
		{"logs s p -t --json", "--timestamps with --json"},
		{"attach s p --since x", "--since \"x\": must be"},
		{"attach s p --detach-keys ctrl-", "--detach-keys \"ctrl-\": must be"},
		{"attach s p --observe --take-over", "--take-over with --observe"},
		{"status --socket /x --url http://127.0.0.1:1", "--socket \"/x\": cannot be used together with --url"},
		{"status --url ftp://x", "must be http://host:port"},
		{"status --url http://127.0.0.1:1 --token-file /no-such-file", "--token-file: open /no-such-file"},
		{"status x", "want boxd status"},
		{"serve --state-dir=", `--state-dir "": must not be empty`},
		{"serve x", "want boxd serve"},
	} {
		v := newInvocation(t)
		status := v.Main(strings.Split(c.args, " "))
		line := v.stderr.String()
		if status != 125 || strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "boxd: ") || !strings.Contains(line, c.stderr) {
			t.Errorf("boxd %s: status %d, stderr %q, want %q", c.args, status, line, c.stderr)
		}
	}
}

func TestTokenIsSent(t *testing.T) {
	var header string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header.Get("Authorization") + " " + r.Header.Get("X-Boxd-Tenant")
		send(w, apitypes.Status{Available: true})
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("abc-123\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := newInvocation(t)
	if status := v.Main([]string{"status", "--url", server.URL, "--token-file", path, "--tenant", "t1"}); status != 0 || header != "Bearer abc-123 t1" {
		t.Errorf("status %d, %q, header %q", status, v.stderr.String(), header)
	}
}

func TestRemoteErrorIsOneLine(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) { refuse(w, 500, "internal", "something\nbroke") })
	status, v := d.call("ps", "s")
	if status != 125 || v.stderr.String() != "boxd: something; broke (request req7)\n" {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
}
