package api

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/session"
)

func TestReady(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	if _, err := c.Ensure(ctx, apitypes.SessionRequest{ID: "s"}); err != nil {
		t.Fatal(err)
	}
	const path = "/v1/sessions/s/processes"
	// A wait is answered when the process is ready, with plain numbers.
	resp, body := f.raw("POST", path, adminToken, `{"id":"line","shell":"echo it is up; exec sleep 60","ready":{"line":"is up","timeout":"30s"},"wait":true}`)
	if text := string(body); resp.StatusCode != 201 || !strings.Contains(text, `"state":"ready"`) || !strings.Contains(text, `"ready":{"line":"is up","timeout":30}`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	p, err := c.Start(ctx, "s", apitypes.ProcessRequest{ID: "port", Argv: []string{"sleep", "60"}, Ready: &apitypes.Ready{Port: 8080, LiveEvery: apitypes.Duration(time.Minute)}, Wait: true})
	if err != nil || p.State != "ready" || p.ReadyAt == nil || p.Ready.Port != 8080 {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := c.Start(ctx, "s", apitypes.ProcessRequest{ID: "slow", Argv: []string{"sleep", "60"}, Ready: &apitypes.Ready{Port: 9}}); err != nil || p.State != "starting" || p.PID == 0 {
		t.Errorf("%+v, %v", p, err)
	}

	// A failure has the last output, and the process stays to be looked at.
	_, err = c.Start(ctx, "s", apitypes.ProcessRequest{ID: "bad", Shell: "echo no such file >&2; exit 4", Ready: &apitypes.Ready{Port: 9}, Wait: true})
	failed, ok := errors.AsType[*client.Error](err)
	if !ok || failed.Code != apitypes.CodeNotReady || failed.Status != 422 || failed.Output != "no such file\n" || failed.Detail != `process "bad" did not become ready: exited with 4 before it was ready` {
		t.Errorf("%+v, %v", failed, err)
	}
	if p, err := c.Process(ctx, "s", "bad"); err != nil || p.State != "exited" || p.Failure == "" || p.FailureOutput != "no such file\n" {
		t.Errorf("%+v, %v", p, err)
	}

	// A client that waits no longer changes nothing.
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := c.Start(short, "s", apitypes.ProcessRequest{ID: "left", Argv: []string{"sleep", "60"}, Ready: &apitypes.Ready{Port: 9}, Wait: true}); err == nil {
		t.Error("it is ready")
	}
	if p, err := c.Process(ctx, "s", "left"); err != nil || p.State != "starting" {
		t.Errorf("%+v, %v", p, err)
	}

	for body, field := range map[string]string{
		`{"id":"x","argv":["true"],"wait":true}`:                                               "wait",
		`{"id":"x","argv":["true"],"ready":{}}`:                                                "ready",
		`{"id":"x","argv":["true"],"ready":{"port":80,"line":"x"}}`:                            "ready",
		`{"id":"x","argv":["true"],"ready":{"port":-1}}`:                                       "ready.port",
		`{"id":"x","argv":["true"],"ready":{"http":"health"}}`:                                 "ready.http",
		`{"id":"x","argv":["true"],"ready":{"port":80,"live_every":0.5}}`:                      "ready.live_every",
		`{"id":"x","argv":["true"],"ready":{"port":80,"timeout":"25h"}}`:                       "ready.timeout",
		`{"id":"x","argv":["true"],"restart":"always"}`:                                        "restart",
		`{"id":"x","argv":["true"],"restart":"on-failure:101"}`:                                "restart",
		`{"id":"x","shell":"` + strings.Repeat("x", 65536) + `","ready":{"command":["true"]}}`: "argv",
	} {
		if p := f.problem("POST", path, adminToken, body); p.Code != apitypes.CodeInvalid || p.Field != field {
			t.Errorf("%.80s: %+v, want the field %s", body, p, field)
		}
	}
	if p := f.problem("POST", path, adminToken, `{"id":"x","argv":["true"],"ready":{"ports":80}}`); p.Code != apitypes.CodeUnknownField {
		t.Errorf("%+v", p)
	}
}

func TestRestart(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	sub := f.sessions.Subscribe(DefaultTenant, 0)
	defer sub.Close()
	if _, err := c.Start(ctx, "s", apitypes.ProcessRequest{ID: "p", Shell: "echo oops; exit 7", Restart: "on-failure:1", Session: &apitypes.SessionSpec{}}); err != nil {
		t.Fatal(err)
	}
	for e := range sub.C {
		if e.Type == session.EventProcessExited {
			if e.Details["failure"] != "exited with 7" || e.Details["restart_at"] == nil {
				t.Errorf("%+v", e)
			}
			break
		}
	}
	p, err := c.Process(ctx, "s", "p")
	if err != nil || p.State != "restarting" || p.RestartAt == nil || p.Failure != "exited with 7" || p.FailureOutput != "oops\n" || p.Restart != "on-failure:1" {
		t.Errorf("%+v, %v", p, err)
	}
	if err := c.Signal(ctx, "s", "p", "HUP"); !client.IsCode(err, apitypes.CodeNotStarted) {
		t.Errorf("signal: %v", err)
	}
	for e := range sub.C {
		if e.Type == session.EventProcessExited { // it was restarted, and failed again
			break
		}
	}
	if p, err := c.Process(ctx, "s", "p"); err != nil || p.State != "exited" || p.Restarts != 1 || !strings.HasSuffix(p.Failure, "given up after 1 of 1 restarts") {
		t.Errorf("%+v, %v", p, err)
	}
}

// A daemon that stops does not wait for processes to become ready.
func TestShutdownEndsAWait(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	sub := f.sessions.Subscribe(DefaultTenant, 0)
	defer sub.Close()
	done := make(chan error, 1)
	go func() {
		_, err := c.Start(ctx, "s", apitypes.ProcessRequest{ID: "p", Argv: []string{"sleep", "60"}, Session: &apitypes.SessionSpec{}, Ready: &apitypes.Ready{Port: 9}, Wait: true})
		done <- err
	}()
	for e := range sub.C {
		if e.Type == session.EventProcessStarted {
			break
		}
	}
	if err := f.Shutdown(ctx); err != nil { // which would wait for the request
		t.Fatal(err)
	}
	if err := <-done; !client.IsCode(err, apitypes.CodeShuttingDown) {
		t.Errorf("%v", err)
	}
}
