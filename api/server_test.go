package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	agentfiles "github.com/boxd/boxd/agent/files"
	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// filesRole in the environment makes this binary carry out a file operation, as the
// agent does in a box.
const filesRole = "BOXD_TEST_FILES"

func TestMain(m *testing.M) {
	if os.Getenv(filesRole) != "" {
		os.Exit(agentfiles.Main(os.Args[1:]))
	}
	testutil.MainUnprivileged(m)
}

const (
	adminToken    = "admin-token-0123456789"
	operatorToken = "operator-token-0123456789"
	viewerToken   = "viewer-token-0123456789"
	strangerToken = "stranger-token-0123456789"
	scraperToken  = "scraper-token-0123456789"
	keeperToken   = "keeper-token-0123456789"
)

const tokenFile = `
# of the tests
` + adminToken + ` default admin root
` + operatorToken + ` acme operator ci   # with a comment
` + viewerToken + ` acme viewer
` + strangerToken + ` other operator
` + scraperToken + ` * viewer prometheus
` + keeperToken + ` * operator keeper
`

// fixture is a daemon without a launcher.
type fixture struct {
	t      testing.TB
	engine *fakeEngine
	*Server
	sessions *session.Manager
	socket   string
	base     string // of the TCP listener
	log      *logBuffer
	http     *http.Client
}

// logBuffer is written by many goroutines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// serve starts a daemon; change may alter its options and policy.
func serve(t testing.TB, change func(*Options, *policy.Config)) *fixture {
	t.Helper()
	dir := t.TempDir()
	f := &fixture{t: t, engine: newFakeEngine(), log: &logBuffer{}, socket: filepath.Join(dir, "s")}
	tokens, err := tokensOf(strings.NewReader(tokenFile))
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o := Options{Auth: Auth{Tokens: tokens}, Version: "test", Logger: logger, Health: f.engine.Health, Metrics: NewMetrics()}
	c := policy.Config{}
	if change != nil {
		change(&o, &c)
	}
	rules, err := policy.New(c)
	if err != nil {
		t.Fatal(err)
	}
	so := session.Options{DB: filepath.Join(dir, "db"), Workspaces: filepath.Join(dir, "w"),
		Engine: f.engine, Storage: f.engine, Policy: rules, Logger: logger, Observe: o.Metrics.ObserveExec, MetricLabels: o.MetricLabels}
	if o.Audit != nil {
		so.Audit = o.Audit
	}
	f.sessions, err = session.Open(t.Context(), so)
	if err != nil {
		t.Fatal(err)
	}
	o.Sessions = f.sessions
	f.Server = New(o)
	f.listen()
	return f
}

func (f *fixture) listen() {
	unix, err := net.Listen("unix", f.socket)
	if err != nil {
		f.t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	f.base = "http://" + tcp.Addr().String()
	var serving sync.WaitGroup
	for _, l := range []net.Listener{unix, tcp} {
		serving.Go(func() {
			if err := f.Serve(l, nil); err != nil {
				f.t.Errorf("serving %s: %v", l.Addr(), err)
			}
		})
	}
	transport := &http.Transport{}
	f.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	f.t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := f.Shutdown(ctx); err != nil {
			f.t.Errorf("shutdown: %v", err)
		}
		serving.Wait()
		if err := f.sessions.Close(ctx, true); err != nil {
			f.t.Errorf("closing sessions: %v", err)
		}
	})
}

// client is one that is known by the Unix socket.
func (f *fixture) client() *client.Client {
	f.t.Helper()
	c, err := client.New(client.Options{Socket: f.socket})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	return c
}

// as is one that is known by a token.
func (f *fixture) as(token, tenant string) *client.Client {
	f.t.Helper()
	c, err := client.New(client.Options{URL: f.base, Token: token, Tenant: tenant})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	return c
}

// raw sends a request as it is and returns the answer with its body.
func (f *fixture) raw(method, path, token, body string, header ...string) (*http.Response, []byte) {
	f.t.Helper()
	req, err := http.NewRequest(method, f.base+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := f.http.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp, b
}

// problem is raw for a request that must fail; it checks the shape.
func (f *fixture) problem(method, path, token, body string, header ...string) apitypes.Problem {
	f.t.Helper()
	resp, b := f.raw(method, path, token, body, header...)
	return checkProblem(f.t, resp, b)
}

func checkProblem(t testing.TB, resp *http.Response, body []byte) apitypes.Problem {
	t.Helper()
	var p apitypes.Problem
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		t.Fatalf("status %d: no problem: %v: %q", resp.StatusCode, err, body)
	}
	if ct := resp.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("content type %q", ct)
	}
	if p.Status != resp.StatusCode || p.Type != "urn:boxd:problem:"+p.Code || p.Title == "" || p.Detail == "" || p.Instance == "" {
		t.Errorf("status %d: incomplete: %+v", resp.StatusCode, p)
	}
	if p.Instance != resp.Header.Get(RequestHeader) {
		t.Errorf("instance %q, header %q", p.Instance, resp.Header.Get(RequestHeader))
	}
	if strings.ContainsAny(p.Detail, "\n\r") {
		t.Errorf("detail of several lines: %q", p.Detail)
	}
	checkDescribed(t, resp.Request, p)
	return p
}

var described = newMux()

// checkDescribed: the document says that a request to this operation can be refused so.
func checkDescribed(t testing.TB, r *http.Request, p apitypes.Problem) {
	t.Helper()
	if p.Status >= 500 || r == nil || checkURL(r.URL) != nil { // no request: a recorder has the answer
		return
	}
	_, pattern := described.Handler(r)
	for i := range routes {
		if rt := &routes[i]; rt.method+" "+rt.path == pattern && !slices.Contains(rt.refusals(), p.Code) {
			t.Errorf("%s: refused with %s, which the document does not say: %s", pattern, p.Code, p.Detail)
		}
	}
}
