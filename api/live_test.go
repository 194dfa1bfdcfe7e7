package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/policy"
)

func TestStatus(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) {
		o.Ready = func() error { return nil }
	})
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	s, err := c.Status(ctx)
	if err != nil || !s.Available || s.Reason != "" || s.Version != "test" || s.Sessions["running"] != 1 || !s.Engine.OK || len(s.Quota) != 10 {
		t.Errorf("%+v, %v", s, err)
	}
	all, err := f.as(adminToken, AllTenants).Status(ctx)
	if err != nil || all.Sessions["running"] != 1 || all.Quota[0].Scope != "global" {
		t.Errorf("%+v, %v", all, err)
	}
	f.engine.setHealth(errors.New("launcher died"))
	s, err = c.Status(ctx)
	if err != nil || s.Available || s.Reason != "engine: launcher died" || s.Engine.OK {
		t.Errorf("%+v, %v", s, err)
	}
	if p := f.problem("GET", "/readyz", adminToken, ""); p.Code != apitypes.CodeUnavailable || p.Detail != "engine: launcher died" {
		t.Errorf("%+v", p)
	}
	if resp, body := f.raw("GET", "/healthz", "", ""); resp.StatusCode != 200 || string(body) != "ok\n" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if p, err := c.Profiles(ctx); err != nil || len(p) != 9 || p[2].Name != "default" || p[2].Timeout.D() != 30*time.Second || p[2].Caps.MaxLifetime.D() != -time.Second {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := c.Errors(ctx); err != nil {
		t.Error(err)
	}
}

// The doctor's answer has lists even if they are empty, and is the daemon's.
func TestDoctor(t *testing.T) {
	if resp, body := serve(t, nil).raw("GET", "/v1/doctor", operatorToken, ""); resp.StatusCode != 200 || strings.TrimSpace(string(body)) != `{"ok":true,"at":"0001-01-01T00:00:00Z","checks":[],"on_host":[]}` {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	want := apitypes.Doctor{At: time.Unix(1, 0).UTC(), Checks: []apitypes.DoctorCheck{{Name: "box", Status: "failed", Detail: "sick", Mend: "rest"}}, OnHost: []string{"cgroups"}}
	f := serve(t, func(o *Options, _ *policy.Config) {
		o.Doctor = func(context.Context) (apitypes.Doctor, error) { return want, nil }
	})
	if got, err := f.client().Doctor(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

// The connector's health is apart from the engine's, and absent if there is none.
func TestConnectorStatus(t *testing.T) {
	if s, err := serve(t, nil).client().Status(t.Context()); err != nil || s.Langbot != nil {
		t.Errorf("%+v, %v", s.Langbot, err)
	}
	var why error
	f := serve(t, func(o *Options, _ *policy.Config) { o.Langbot = func(context.Context) error { return why } })
	if s, err := f.client().Status(t.Context()); err != nil || s.Langbot == nil || !s.Langbot.OK || s.Langbot.Reason != "" {
		t.Errorf("%+v, %v", s.Langbot, err)
	}
	why = errors.New("no workspaces")
	if s, err := f.client().Status(t.Context()); err != nil || s.Langbot == nil || s.Langbot.OK || s.Langbot.Reason != "no workspaces" || !s.Engine.OK || !s.Available {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestMetrics(t *testing.T) {
	f := serve(t, func(_ *Options, c *policy.Config) { c.TenantDefaults.Sessions = 1 })
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	if _, err := c.Exec(ctx, "a", apitypes.ExecRequest{Argv: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Ensure(ctx, apitypes.SessionRequest{ID: "b"})
	var e *client.Error
	if !errors.As(err, &e) || e.Code != apitypes.CodeQuota || e.Status != 429 || e.Limit != "sessions" || e.Value != "1" || e.InUse != "1" || e.Asked != "1" || e.Scope != "tenant" {
		t.Errorf("quota: %+v", err)
	}
	_, body := f.raw("GET", "/metrics", scraperToken, "")
	for _, line := range []string{
		`boxd_sessions{state="running"} 1`, `boxd_sessions_created_total 1`, `boxd_execs_total{verdict="exited"} 1`,
		`boxd_exec_duration_seconds_count 1`, `boxd_quota_refusals_total{quota="sessions",scope="tenant"} 1`,
		`boxd_http_requests_total{route="exec",status="200"} 1`, `boxd_launcher_up 1`, `boxd_audit_up 1`,
		`boxd_relay_bytes_total{stream="stdout"} 0`, `boxd_sessions_reaped_total 0`, `boxd_boxes_recreated_total 0`, `go_goroutines `,
	} {
		if !strings.Contains(string(body), "\n"+line) {
			t.Errorf("no %q", line)
		}
	}
}

func TestEvents(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	events, err := c.Events(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "c"} {
		ensure(t, c, id)
	}
	seen := created(t, events, 3)
	events.Close()
	// Going on behind the first of them gives the others once more.
	again, err := c.Events(ctx, fmt.Sprint(seen[0].ID))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if rest := created(t, again, 2); rest[0].Session != "b" || rest[1].Session != "c" || again.LastID != fmt.Sprint(rest[1].ID) {
		t.Errorf("%+v", rest)
	}
	// Those of another tenant are not among them.
	stranger, err := f.as(strangerToken, "").Events(ctx, "1")
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	ensure(t, f.as(strangerToken, ""), "mine")
	if e := created(t, stranger, 1); e[0].Session != "mine" {
		t.Errorf("%+v", e)
	}
}

// created reads until n sessions were created.
func created(t *testing.T, events *client.Events, n int) (list []apitypes.Event) {
	t.Helper()
	for len(list) < n {
		e, err := events.Next()
		if missed := new(client.MissedError); errors.As(err, &missed) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "created" {
			list = append(list, e)
		}
	}
	return list
}

func TestPanic(t *testing.T) {
	f := serve(t, nil)
	for _, started := range []bool{false, true} {
		f.mux = http.NewServeMux()
		f.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
			if started {
				w.Write([]byte("half an answer"))
				w.(http.Flusher).Flush()
			}
			panic("secret detail")
		})
		req, _ := http.NewRequest("GET", f.base+"/", nil)
		req.Header.Set(RequestHeader, "my-request.1")
		resp, err := f.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if started {
			if err == nil {
				t.Errorf("a half answer passes for a whole: %q", body)
			}
			continue
		}
		if p := checkProblem(t, resp, body); p.Status != 500 || p.Code != apitypes.CodeInternal || strings.Contains(p.Detail, "secret") || p.Instance != "my-request.1" {
			t.Errorf("%+v", p)
		}
	}
	for _, part := range []string{"secret detail", "request=my-request.1", "live_test.go"} {
		if !strings.Contains(f.log.String(), part) {
			t.Errorf("the log has no %q", part)
		}
	}
}

// Only callers who may read the log see the text of an unexpected error.
func TestUnexpectedErrors(t *testing.T) {
	f := serve(t, nil)
	f.engine.setHealth(errors.New("inner detail\nof two lines"))
	if p := f.problem("POST", "/v1/sessions", operatorToken, `{"id":"a"}`); p.Code != apitypes.CodeInternal || strings.Contains(p.Detail, "inner") {
		t.Errorf("%+v", p)
	}
	if p := f.problem("POST", "/v1/sessions", adminToken, `{"id":"a"}`); p.Code != apitypes.CodeInternal || !strings.Contains(p.Detail, "inner detail; of two lines") {
		t.Errorf("%+v", p)
	}
	f.engine.setHealth(fmt.Errorf("%w: it died", engine.ErrNoLauncher))
	if p := f.problem("POST", "/v1/sessions", operatorToken, `{"id":"a"}`); p.Code != apitypes.CodeEngineUnavailable || p.Status != 503 {
		t.Errorf("%+v", p)
	}
	before := strings.Count(f.log.String(), "request failed")
	if before != 3 || !strings.Contains(f.log.String(), "inner detail") {
		t.Errorf("the log does not have it, or not once: %d", before)
	}
	if p := f.problem("GET", "/readyz", viewerToken, ""); p.Code != apitypes.CodeUnavailable {
		t.Errorf("%+v", p)
	}
	if n := strings.Count(f.log.String(), "request failed"); n != before {
		t.Error("asking for readiness fills the log")
	}
}

func TestRequestIDs(t *testing.T) {
	for given, kept := range map[string]bool{"a": true, "A-b_c.9": true, "": false, "a b": false, "a\nb": false, "é": false, strings.Repeat("a", 65): false, "\x00": false} {
		if got := requestID(given); (got == given) != kept || got == "" {
			t.Errorf("%q: %q", given, got)
		}
	}
}

func TestShutdown(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	if _, err := c.Start(ctx, "a", apitypes.ProcessRequest{ID: "p", Argv: []string{"sleep", "55"}}); err != nil {
		t.Fatal(err)
	}
	events, err := c.Events(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	logs, err := c.Logs(ctx, "a", "p", client.LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.AttachOnce(ctx, "a", "p", client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sub := f.sessions.Subscribe("", 0)
	results := make(chan string, 2)
	for _, seconds := range []string{"0.2", "33"} {
		go func() {
			r, err := c.Exec(ctx, "a", apitypes.ExecRequest{Argv: []string{"sleep", seconds}})
			if err != nil {
				t.Error(err)
				r = &apitypes.ExecResult{}
			}
			results <- r.Verdict
		}()
	}
	relayEnd := make(chan error, 1)
	go func() {
		for {
			if _, err := a.Recv(); err != nil {
				relayEnd <- err
				return
			}
		}
	}()
	for n := 0; n < 2; {
		if e := <-sub.C; e.Type == "exec-started" {
			n++
		}
	}
	sub.Close()
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	short := make(chan string, 1)
	go func() {
		short <- <-results
		cancel() // the patience of the shutdown is over, and the long one still runs
	}()
	if err := f.Shutdown(stop); err != nil {
		t.Error(err)
	}
	if verdict := <-short; verdict != "exited" {
		t.Errorf("the short command: %s", verdict)
	}
	if verdict := <-results; verdict != "canceled" {
		t.Errorf("the long command: %s", verdict)
	}
	<-f.engine.killed
	for {
		if _, err := events.Next(); err != nil {
			break
		}
	}
	events.Close()
	if _, err := io.ReadAll(logs); err == nil {
		t.Error("logs that were cut look whole")
	}
	logs.Close()
	if err := <-relayEnd; !strings.Contains(err.Error(), "1012") {
		t.Errorf("relay: %v", err)
	}
	if _, err := c.Status(ctx); err == nil {
		t.Error("it still answers")
	}
}

// Ten thousand connections that send nothing, or half a header, displace only one another.
func TestHalfOpenConnections(t *testing.T) {
	const most, attackers = 500, 10000
	// No connection gives up its place by itself.
	f := serve(t, func(o *Options, _ *policy.Config) { o.MaxConnections, o.HeaderTimeout = most, time.Hour })
	raiseFiles(t, attackers+2*most)
	used := f.client() // a connection that is in use, and must stay
	ensure(t, used, "a")
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for i := range attackers {
		c, err := net.Dial("unix", f.socket)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		conns = append(conns, c)
		if i%2 == 0 {
			io.WriteString(c, "POST /v1/sessions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		}
		if i%1000 == 999 {
			if _, err := used.Exec(t.Context(), "a", apitypes.ExecRequest{Argv: []string{"true"}}); err != nil {
				t.Errorf("after %d: %v", i+1, err)
			}
			fresh, err := client.New(client.Options{Socket: f.socket})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fresh.Status(t.Context()); err != nil {
				t.Errorf("a new client after %d: %v", i+1, err)
			}
			fresh.Close()
		}
	}
}

func raiseFiles(t *testing.T, n uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	old := limit
	if limit.Cur >= n {
		return
	}
	if limit.Max < n {
		t.Fatalf("%d open files are allowed, %d needed", limit.Max, n)
	}
	limit.Cur = n
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) })
}

// Requests that are refused before their body has arrived do not keep their places.
func TestBodiesThatNeverCome(t *testing.T) {
	const most = 20
	f := serve(t, func(o *Options, _ *policy.Config) { o.MaxConnections = most })
	for i := range most {
		c, err := net.Dial("tcp", strings.TrimPrefix(f.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, []string{
			"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n",
			"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
			"PUT /v1/sessions/a/files/content?path=x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + viewerToken + "\r\nContent-Length: 1000\r\n\r\n",
		}[i%3])
	}
	for strings.Count(f.log.String(), "msg=request ") < most {
		time.Sleep(time.Millisecond) // all are answered, or would be
	}
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience())
	defer cancel()
	for {
		_, err := f.as(adminToken, "").Status(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// A file whose content was cut is not there, and the daemon does not blame itself.
func TestVanishedUpload(t *testing.T) {
	f := serve(t, nil)
	c := f.client()
	ensure(t, c, "a")
	dir := t.TempDir()
	for _, path := range []string{"content?path=" + dir + "/f", "tar?path=" + dir} {
		conn, err := net.Dial("unix", f.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "PUT /v1/sessions/a/files/"+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nonly a part")
		conn.(*net.UnixConn).CloseWrite()
		answer, err := io.ReadAll(conn)
		if err != nil || strings.HasPrefix(string(answer), "HTTP/1.1 2") || strings.Contains(string(answer), apitypes.CodeInternal) {
			t.Errorf("%s: %q, %v", path, answer, err)
		}
	}
	if list, err := c.ListFiles(t.Context(), "a", dir); err != nil || len(list.Files) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

// A header that arrives too slowly ends the connection.
func TestSlowHeader(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) { o.HeaderTimeout = 50 * time.Millisecond })
	c, err := net.Dial("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET /v1/status HTTP/1.1\r\nX: ")
	c.SetReadDeadline(time.Now().Add(testutil.Patience()))
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("it was not cut")
	}
}

// A WebSocket and a stream without a reader stop neither others nor the shutdown.
func TestReadersThatDoNotRead(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	if _, err := c.Start(ctx, "a", apitypes.ProcessRequest{ID: "p", Shell: "yes | head -c 3000000; sleep 44"}); err != nil {
		t.Fatal(err)
	}
	for _, request := range []string{
		"GET /v1/sessions/a/processes/p/relay HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
		"GET /v1/sessions/a/processes/p/logs?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/sessions/a/exec HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{\"argv\":[\"yes\"]}",
	} {
		conn, err := net.Dial("unix", f.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, request)
		line, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
		if err != nil || !strings.Contains(line, "101") && !strings.Contains(line, "200") {
			t.Errorf("%.30q: %q, %v", request, line, err)
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if _, err := c.Exec(ctx, "a", apitypes.ExecRequest{Argv: []string{"true"}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
