package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
)

// burnFor is the processor time that each process of TestUsageHoweverItEnds uses.
const burnFor = 400 * time.Millisecond

// burn starts a process that uses burnFor of processor time, and returns when it has.
func (d *daemon) burn(session string, flags ...string) {
	d.t.Helper()
	script := fmt.Sprintf("import time\nwhile time.process_time() < %g: pass\nprint('burnt', flush=True)\ntime.sleep(600)", burnFor.Seconds())
	args := append([]string{"start", session, "--id", "p", "--ready-line", "burnt", "--wait"}, flags...)
	if r := d.run(append(args, "--", "python3", "-c", script)...); r.status != 0 {
		d.t.Fatal(r)
	}
}

// usageOf is what a session has used.
func (d *daemon) usageOf(session string) (used apitypes.UsageRow) {
	d.t.Helper()
	var u apitypes.UsageList
	r := d.run("usage", "--by", "session", "--json")
	if err := json.Unmarshal([]byte(r.stdout), &u); err != nil {
		d.t.Fatal(r)
	}
	for _, row := range u.Usage {
		if row.Session == session {
			return row
		}
	}
	return used
}

// awaitGone waits until a session does not exist.
func (d *daemon) awaitGone(session string) {
	d.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if status, _ := d.ask(d.apiClient(), "GET", "/v1/sessions/"+session, ""); status == 404 {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("session %s still exists", session)
		}
	}
}

// What a managed process has used is counted once, in whichever way it ends.
func TestUsageHoweverItEnds(t *testing.T) {
	d := startDaemon(t)
	remove := func(session string) {
		if r := d.run("sessions", "rm", session); r.status != 0 {
			t.Fatal(r)
		}
	}
	d.burn("stopped")
	d.says(0, "", "stop", "stopped", "p")

	d.burn("removed")
	remove("removed")

	d.burn("expired", "--max-lifetime", "3s")
	d.awaitGone("expired")

	d.burn("lost")
	var s apitypes.Session
	_, answer := d.ask(d.apiClient(), "GET", "/v1/sessions/lost", "")
	if err := json.Unmarshal(answer, &s); err != nil {
		t.Fatal(err)
	}
	d.killInit(s.Box)
	d.ask(d.apiClient(), "GET", "/v1/sessions/lost/processes/p/logs?follow=1", "") // ends when the daemon knows

	d.burn("restarted")
	d.kill()
	d.start()
	remove("restarted")

	sessions := []string{"stopped", "removed", "expired", "lost", "restarted"}
	// A daemon that is killed at any moment of a removal.
	for i, pause := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 6 * time.Millisecond, 10 * time.Millisecond, 16 * time.Millisecond, 25 * time.Millisecond} {
		session := fmt.Sprintf("killed%d", i)
		sessions = append(sessions, session)
		d.burn(session)
		ctx, cancel := context.WithCancel(t.Context())
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			req, _ := http.NewRequestWithContext(ctx, "DELETE", "http://boxd/v1/sessions/"+session, nil)
			if resp, err := d.apiClient().Do(req); err == nil {
				resp.Body.Close()
			}
		}()
		time.Sleep(pause)
		d.kill()
		cancel()
		<-sent
		d.start()
		if status, _ := d.ask(d.apiClient(), "DELETE", "/v1/sessions/"+session, ""); status != 204 && status != 404 {
			t.Errorf("%s: %d", session, status)
		}
		d.awaitGone(session)
	}
	for _, session := range sessions {
		if u := d.usageOf(session); u.Processes != 1 || u.CPU.D() < burnFor || u.CPU.D() > 2*burnFor {
			t.Errorf("%s: %+v", session, u)
		}
	}
}
