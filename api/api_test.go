package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/relay"
)

// ensure makes session id.
func ensure(t *testing.T, c *client.Client, id string) apitypes.Session {
	t.Helper()
	s, err := c.Ensure(t.Context(), apitypes.SessionRequest{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ptr[T any](v T) *T { return &v }

func TestSessions(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	s, err := c.Ensure(ctx, apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{LiveWishes: spec.LiveWishes{Memory: ptr(apitypes.Size(64 << 20)), IdleTTL: ptr(apitypes.Duration(time.Minute))}}})
	if err != nil || !s.Created || s.State != "running" || s.Memory != 64<<20 || s.IdleTTL.D() != time.Minute || s.Tenant != DefaultTenant {
		t.Fatalf("created: %+v, %v", s, err)
	}
	if s, err := c.Ensure(ctx, apitypes.SessionRequest{ID: "a"}); err != nil || s.Created {
		t.Errorf("again: %+v, %v", s, err)
	}
	_, err = c.Ensure(ctx, apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{LiveWishes: spec.LiveWishes{Memory: ptr(apitypes.Size(65 << 20))}}})
	var e *client.Error
	if !errors.As(err, &e) || e.Code != apitypes.CodeSessionConflict || len(e.Conflicts) != 1 || e.Conflicts[0].Field != "memory" {
		t.Errorf("conflict: %+v", err)
	}
	scoped, err := c.Ensure(ctx, apitypes.SessionRequest{Scope: "{kind}_{no}", Variables: map[string]string{"kind": "group"}})
	if err != nil || scoped.ID != "group_unknown" {
		t.Errorf("scope: %+v, %v", scoped, err)
	}
	if list, err := c.Sessions(ctx); err != nil || len(list) != 2 || list[0].ID != "a" {
		t.Errorf("list: %+v, %v", list, err)
	}
	if s, err = c.Update(ctx, "a", apitypes.SessionUpdate{LiveWishes: spec.LiveWishes{IdleTTL: ptr(apitypes.Duration(2 * time.Minute))}}); err != nil || s.IdleTTL.D() != 2*time.Minute {
		t.Errorf("update: %+v, %v", s, err)
	}
	if u, err := c.Usage(ctx, "a"); err != nil || *u.PIDs != 3 || u.CPU != nil {
		t.Errorf("usage: %+v, %v", u, err)
	}
	if p, err := c.Ports(ctx, "a"); err != nil || len(p) != 1 || p[0].Port != 8080 {
		t.Errorf("ports: %+v, %v", p, err)
	}
	if err := c.Remove(ctx, "a"); err != nil {
		t.Error(err)
	}
	if _, err := c.Session(ctx, "a"); !client.IsCode(err, apitypes.CodeSessionNotFound) {
		t.Errorf("removed: %v", err)
	}
}

func TestExec(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	r, err := c.Exec(ctx, "a", apitypes.ExecRequest{Argv: []string{"echo", "hello"}, Session: &apitypes.SessionSpec{}})
	if err != nil || *r.ExitCode != 0 || r.Stdout != "hello\n" || r.Verdict != "exited" || !r.Created {
		t.Fatalf("echo: %+v, %v", r, err)
	}
	r, err = c.Exec(ctx, "a", apitypes.ExecRequest{Shell: "cat; echo $X >&2; exit 3", Stdin: "é", Env: map[string]string{"X": "y"}})
	if err != nil || *r.ExitCode != 3 || r.Status != 3 || r.Stdout != "é" || r.Stderr != "y\n" || r.Created {
		t.Errorf("shell: %+v, %v", r, err)
	}
	r, err = c.Exec(ctx, "a", apitypes.ExecRequest{Argv: []string{"cat"}, StdinBase64: []byte{0xff, 0}})
	if err != nil || r.Stdout != "" || !bytes.Equal(r.Out(), []byte{0xff, 0}) {
		t.Errorf("bytes: %+v, %v", r, err)
	}
	r, err = c.Exec(ctx, "a", apitypes.ExecRequest{Shell: "kill -9 $$"})
	if err != nil || r.ExitCode != nil || r.Signal != "SIGKILL" || r.Status != 137 {
		t.Errorf("killed: %+v, %v", r, err)
	}
	if _, err := c.Exec(ctx, "a", apitypes.ExecRequest{Argv: []string{"no-such-program"}}); !client.IsCode(err, apitypes.CodeProgramNotFound) {
		t.Errorf("missing program: %v", err)
	}
}

func TestExecStream(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	var out, errs bytes.Buffer
	r, err := c.ExecStream(ctx, "a", apitypes.ExecRequest{Shell: `echo out; printf '\377' >&2; exit 4`}, &out, &errs)
	if err != nil || *r.ExitCode != 4 || out.String() != "out\n" || errs.String() != "\xff" {
		t.Errorf("%+v, %v, %q, %q", r, err, out.String(), errs.String())
	}
	if _, err := c.ExecStream(ctx, "a", apitypes.ExecRequest{Argv: []string{"no-such-program"}}, nil, nil); !client.IsCode(err, apitypes.CodeProgramNotFound) {
		t.Errorf("missing program: %v", err)
	}
	// Output arrives while the command runs: the test ends it in response.
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, err := c.ExecStream(ctx, "a", apitypes.ExecRequest{Shell: "echo ready; exec sleep 100"}, pw, nil)
		done <- err
	}()
	line := make([]byte, 6)
	if _, err := io.ReadFull(pr, line); err != nil || string(line) != "ready\n" {
		t.Errorf("%q, %v", line, err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	<-f.engine.killed
}

func TestVanishedClient(t *testing.T) {
	f := serve(t, nil)
	c := f.client()
	ensure(t, c, "a")
	for _, stream := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		sub := f.sessions.Subscribe("", 0)
		go func() {
			for e := range sub.C {
				if e.Type == "exec-started" {
					cancel()
				}
			}
		}()
		q := apitypes.ExecRequest{Argv: []string{"sleep", "77"}}
		var err error
		if stream {
			_, err = c.ExecStream(ctx, "a", q, nil, nil)
		} else {
			_, err = c.Exec(ctx, "a", q)
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("stream %v: %v", stream, err)
		}
		if args := <-f.engine.killed; args != "sleep 77" {
			t.Errorf("killed %q", args)
		}
		sub.Close()
		cancel()
	}
}

func TestProcesses(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	p, err := c.Start(ctx, "a", apitypes.ProcessRequest{ID: "p", Shell: "echo begin; cat; echo end >&2; exit 5"})
	if err != nil || p.State != "running" || p.ExitCode != nil {
		t.Fatalf("%+v, %v", p, err)
	}
	if _, err := c.Start(ctx, "a", apitypes.ProcessRequest{ID: "p", Argv: []string{"true"}}); !client.IsCode(err, apitypes.CodeExists) {
		t.Errorf("again: %v", err)
	}
	a, err := c.Attach(ctx, "a", "p", client.AttachOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := c.AttachOnce(ctx, "a", "p", client.AttachOptions{Write: true}); !client.IsCode(err, apitypes.CodeWriterTaken) {
		t.Errorf("second writer: %v", err)
	}
	if _, err := a.Write([]byte("typed\n")); err != nil {
		t.Error(err)
	}
	if err := a.CloseStdin(); err != nil {
		t.Error(err)
	}
	out, exit := collect(t, a)
	if out[relay.Stdout] != "begin\ntyped\n" || out[relay.Stderr] != "end\n" || exit.Code != 5 {
		t.Errorf("%q, %+v", out, exit)
	}
	p, err = c.Process(ctx, "a", "p")
	if err != nil || p.State != "exited" || *p.ExitCode != 5 || p.Stdout.End != 12 {
		t.Errorf("%+v, %v", p, err)
	}
	l, err := c.Logs(ctx, "a", "p", client.LogOptions{Offset: 6, Limit: 3, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(l)
	l.Close()
	if string(text) != "typ" || err != nil || l.Offset != 6 || l.Gap != 0 {
		t.Errorf("logs %q, %v, %+v", text, err, l)
	}
	for query, code := range map[string]string{"limit=x&offset=y&follow=maybe": apitypes.CodeInvalid, "stream=stdin": apitypes.CodeInvalid, "offset=99": apitypes.CodeNoOffset, "nope=1": apitypes.CodeUnknownField} {
		if p := f.problem("GET", "/v1/sessions/a/processes/p/logs?"+query, adminToken, ""); p.Code != code {
			t.Errorf("%s: %+v", query, p)
		}
	}
	if p := f.problem("GET", "/v1/sessions/a/processes/p/relay", adminToken, ""); p.Code != apitypes.CodeRelayRequest {
		t.Errorf("no WebSocket: %+v", p)
	}
	if err := c.Signal(ctx, "a", "p", "HUP"); !client.IsCode(err, apitypes.CodeProcessEnded) {
		t.Errorf("signal to one that ended: %v", err)
	}
	if err := c.RemoveProcess(ctx, "a", "p"); err != nil {
		t.Error(err)
	}
	if _, err := c.Process(ctx, "a", "p"); !client.IsCode(err, apitypes.CodeProcessNotFound) {
		t.Errorf("removed: %v", err)
	}
	if _, err := c.Process(ctx, "b", "p"); !client.IsCode(err, apitypes.CodeSessionNotFound) {
		t.Errorf("no session: %v", err)
	}
}

func collect(t *testing.T, a interface{ Recv() (relay.Event, error) }) (map[relay.Stream]string, relay.Exit) {
	t.Helper()
	out := map[relay.Stream]string{}
	for {
		e, err := a.Recv()
		if err != nil {
			t.Fatalf("after %q: %v", out, err)
		}
		switch e := e.(type) {
		case relay.Data:
			out[e.Stream] += string(e.Bytes)
		case relay.Exited:
			return out, e.Exit
		}
	}
}

func TestStopAndSignal(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	for _, id := range []string{"stop", "signal"} {
		if _, err := c.Start(ctx, "a", apitypes.ProcessRequest{ID: id, Argv: []string{"sleep", "88"}}); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := c.Stop(ctx, "a", "stop", apitypes.StopRequest{Grace: ptr(apitypes.Duration(time.Second))}); err != nil || p.State != "stopped" {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := c.Stop(ctx, "a", "signal", apitypes.StopRequest{Grace: ptr(apitypes.Duration(-time.Second))}); !client.IsCode(err, apitypes.CodeInvalid) {
		t.Errorf("grace without an end: %v", err)
	}
	if err := c.Signal(ctx, "a", "signal", "NOPE"); !client.IsCode(err, apitypes.CodeInvalid) {
		t.Errorf("no such signal: %v", err)
	}
	if err := c.Signal(ctx, "a", "signal", "TERM"); err != nil {
		t.Error(err)
	}
	l, err := c.Logs(ctx, "a", "signal", client.LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, l)
	l.Close()
	if list, err := c.Processes(ctx, "a"); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestFiles(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) { o.MaxFile = 1 << 20 })
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	dir := t.TempDir()
	path := dir + "/d/f"
	content := strings.Repeat("0123456789", 10000)
	if info, err := c.WriteFile(ctx, "a", path, strings.NewReader(content), client.WriteOptions{Mode: "0640", Parents: true}); err != nil || info.Size != int64(len(content)) || info.Mode != "0640" {
		t.Fatalf("%+v, %v", info, err)
	}
	for _, r := range []struct {
		offset, limit int64
		want          string
	}{{0, 0, content}, {5, 3, "567"}, {int64(len(content)), 0, ""}} {
		body, err := c.ReadFile(ctx, "a", path, r.offset, r.limit)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		body.Close()
		if string(got) != r.want || err != nil {
			t.Errorf("offset %d: %d bytes, %v", r.offset, len(got), err)
		}
	}
	if _, err := c.WriteFile(ctx, "a", dir+"/\xff", strings.NewReader(""), client.WriteOptions{}); err != nil {
		t.Error(err)
	}
	list, err := c.ListFiles(ctx, "a", dir)
	if err != nil || len(list.Files) != 2 || list.Files[0].Type != "dir" || string(list.Files[1].RawName) != "\xff" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := c.Mkdir(ctx, "a", apitypes.MkdirRequest{Path: dir + "/m", Mode: "0710"}); err != nil {
		t.Error(err)
	}
	if info, err := c.StatFile(ctx, "a", dir+"/m"); err != nil || info.Mode != "0710" {
		t.Errorf("%+v, %v", info, err)
	}
	for _, target := range []string{"m", "nowhere/\u00e9"} { // the second replaces the first
		if err := c.Symlink(ctx, "a", dir+"/link", target); err != nil {
			t.Error(err)
		}
		if info, err := c.StatFile(ctx, "a", dir+"/link"); err != nil || info.Target != target {
			t.Errorf("%+v, %v", info, err)
		}
	}
	for what, check := range map[string]struct {
		err  error
		code string
	}{
		"mkdir mode":      {c.Mkdir(ctx, "a", apitypes.MkdirRequest{Path: dir + "/n", Mode: "1777"}), apitypes.CodeInvalid},
		"link over dir":   {c.Symlink(ctx, "a", dir+"/m", "x"), apitypes.CodeFileType},
		"link to nothing": {c.Symlink(ctx, "a", dir+"/y", ""), apitypes.CodeInvalid},
		"mkdir again":     {c.Mkdir(ctx, "a", apitypes.MkdirRequest{Path: dir + "/m"}), apitypes.CodeFileExists},
		"stat":            {second(c.StatFile(ctx, "a", dir+"/none")), apitypes.CodeNoFile},
		"read dir":        {second(c.ReadFile(ctx, "a", dir, 0, 0)), apitypes.CodeFileType},
		"remove full":     {c.RemoveFile(ctx, "a", dir+"/d", false), apitypes.CodeNotEmpty},
		"no path":         {c.RemoveFile(ctx, "a", "", false), apitypes.CodeInvalid},
		"no session":      {c.RemoveFile(ctx, "b", "x", false), apitypes.CodeSessionNotFound},
		"mode":            {second(c.WriteFile(ctx, "a", path, nil, client.WriteOptions{Mode: "999"})), apitypes.CodeInvalid},
		"too large":       {second(c.WriteFile(ctx, "a", path, io.LimitReader(zeros{}, 2<<20), client.WriteOptions{})), apitypes.CodeFileTooLarge},
	} {
		if !client.IsCode(check.err, check.code) {
			t.Errorf("%s: %v, want %s", what, check.err, check.code)
		}
	}
	if err := c.RemoveFile(ctx, "a", dir+"/d", true); err != nil {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
