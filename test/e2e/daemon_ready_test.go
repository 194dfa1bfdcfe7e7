package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
)

// process asks the daemon for a process of the session "s".
func (d *daemon) process(id string) (p apitypes.Process) {
	d.t.Helper()
	status, answer := d.ask(d.apiClient(), "GET", "/v1/sessions/s/processes/"+id, "")
	if err := json.Unmarshal(answer, &p); err != nil || status != 200 {
		d.t.Fatalf("process %s: %d %s, %v", id, status, answer, err)
	}
	return p
}

// awaitState waits until a process has a state.
func (d *daemon) awaitState(id, state string) apitypes.Process {
	d.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		p := d.process(id)
		if p.State == state {
			return p
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("process %s is %s (%s), not %s", id, p.State, p.Failure, state)
		}
	}
}

// Each probe works in a real box, also where the daemon dies meanwhile.
func TestReadiness(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	start := func(id string, flags []string, script string) result {
		args := append([]string{"start", "s", "--id", id}, flags...)
		return d.run(append(args, "--", "sh", "-c", script)...)
	}
	for id, c := range map[string]struct {
		flags  []string
		script string
	}{
		"line":    {[]string{"--ready-line", "Serving HTTP"}, "exec python3 -u -m http.server 8001"},
		"port":    {[]string{"--ready-port", "8002"}, "exec python3 -m http.server 8002"},
		"http":    {[]string{"--ready-http", "8003/up", "--live-every", "1s"}, "touch up; exec python3 -m http.server 8003"},
		"http6":   {[]string{"--ready-http", "8004/"}, "exec python3 -m http.server --bind ::1 8004"},
		"command": {[]string{"--ready-command", "test -e /tmp/up"}, "touch /tmp/up; exec sleep 600"},
	} {
		if r := start(id, append(c.flags, "--wait"), c.script); r.status != 0 {
			t.Errorf("%s: %v", id, r)
		} else if p := d.process(id); p.State != "ready" || p.ReadyAt == nil {
			t.Errorf("%s: %+v", id, p)
		}
	}

	failed := start("failed", []string{"--ready-port", "9000", "--wait"}, "echo no configuration >&2; exit 3")
	if failed.status == 0 || !strings.Contains(failed.stderr, "no configuration\n") || !strings.Contains(failed.stderr, "exited with 3 before it was ready") {
		t.Errorf("a process that fails: %v", failed)
	}
	never := start("never", []string{"--ready-http", "9000/", "--ready-timeout", "1s", "--wait"}, "echo waiting; exec sleep 600")
	if never.status == 0 || !strings.Contains(never.stderr, "not ready within 1s: GET / on port 9000: connecting to port 9000: connection refused") || !strings.Contains(never.stderr, "waiting\n") {
		t.Errorf("a process that is never ready: %v", never)
	}
	if p := d.process("never"); p.State != "failed" || p.FailureOutput != "waiting\n" {
		t.Errorf("%+v", p)
	}

	again := start("again", []string{"--ready-line", "up", "--restart", "on-failure", "--wait"},
		"test -e /tmp/tried && echo up && exec sleep 600; touch /tmp/tried; exit 4")
	if p := d.process("again"); again.status != 0 || p.State != "ready" || p.Restarts != 1 {
		t.Errorf("a process that succeeds the second time: %v, %+v", again, p)
	}
	if ps := d.run("ps", "s", "--format", "{{.id}} {{.restarts}}"); !strings.Contains(ps.stdout, "again 1\n") || !strings.Contains(ps.stdout, "port 0\n") {
		t.Errorf("%v", ps)
	}
	if ps := d.run("ps", "s"); !strings.HasPrefix(ps.stdout, "SESSION\tPROCESS\tSTATE\tEXIT\tRESTARTS\tAGE\t") {
		t.Errorf("%v", ps)
	}

	// A daemon that is killed goes on with probes and restarts.
	d.run("exec", "s", "--", "rm", "-f", "/tmp/go")
	if r := start("slow", []string{"--ready-command", "test -e /tmp/go"}, "exec sleep 600"); r.status != 0 {
		t.Fatal(r)
	}
	if r := start("crash", []string{"--restart", "on-failure:20"}, "test -e /tmp/go && exec sleep 600; exit 5"); r.status != 0 {
		t.Fatal(r)
	}
	d.awaitState("crash", "restarting")
	d.kill()
	d.start()
	d.awaitState("slow", "starting")
	d.says(0, "", "exec", "s", "--", "touch", "/tmp/go")
	d.awaitState("slow", "ready")
	if p := d.awaitState("crash", "running"); p.Restarts == 0 || p.Failure != "exited with 5" {
		t.Errorf("%+v", p)
	}

	// A server whose answers turn bad is unready.
	d.says(0, "", "exec", "s", "--", "rm", "up")
	d.awaitState("http", "unready")
	d.says(0, "", "exec", "s", "--", "touch", "up")
	d.awaitState("http", "ready")
	d.says(0, "", "stop", "s", "http")
	if p := d.process("http"); p.State != "stopped" || p.Failure != "" {
		t.Errorf("%+v", p)
	}
}
