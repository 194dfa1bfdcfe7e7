package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

// stream sends output and the end of a command as the daemon does.
func stream(w http.ResponseWriter, events ...apitypes.ExecEvent) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	for _, e := range events {
		json.NewEncoder(w).Encode(e)
	}
}

func number(n int) *int { return &n }

func TestExec(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		stream(w, apitypes.ExecEvent{Stream: "stdout", Data: "out"}, apitypes.ExecEvent{Stream: "stderr", Data: "err\n"},
			apitypes.ExecEvent{Stream: "stdout", DataBase64: []byte{0xff, 0}}, apitypes.ExecEvent{Result: &apitypes.ExecResult{ExitCode: number(7), Status: 7, Verdict: "exited"}})
	})
	status, v := d.call("exec", "s", "--", "prog", "-x", "--", "y")
	if status != 7 || v.stdout.String() != "out\xff\x00" || v.stderr.String() != "err\n" {
		t.Errorf("status %d, stdout %q, stderr %q", status, v.stdout.String(), v.stderr.String())
	}
	d.wantRequests(`POST /v1/sessions/s/exec {"argv":["prog","-x","--","y"]}`)
	d.call("exec", "s") // the image's command
	d.call("exec", "s", "--")
	d.wantRequests(`POST /v1/sessions/s/exec {"argv":["prog","-x","--","y"]}`, `POST /v1/sessions/s/exec {}`, `POST /v1/sessions/s/exec {}`)
}

func TestExecFlags(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		stream(w, apitypes.ExecEvent{Result: &apitypes.ExecResult{ExitCode: number(0), Verdict: "exited"}})
	})
	v := newInvocation(t)
	v.Stdin = strings.NewReader("in")
	status := d.callWith(v, "exec", "a:b", "-i", "-e", "K=v", "-w", "/tmp", "--mkdir", "-u", "5:6", "--timeout", "2", "--profile", "p", "--memory", "64M",
		"--cpus", "0.5", "--pids", "unlimited", "--rw-rootfs", "-v", "/srv/x:/x:ro", "--persistent", "--idle-ttl", "1m", "--network=false", "--zygote", "py", "--shell", "--", "echo $K")
	if status != 0 {
		t.Fatalf("status %d: %s", status, v.stderr.String())
	}
	if len(d.requests) != 1 || !strings.HasPrefix(d.requests[0].what, "POST /v1/sessions/a:b/exec") {
		t.Fatalf("%+v", d.requests)
	}
	var r apitypes.ExecRequest
	if err := json.Unmarshal([]byte(d.requests[0].body), &r); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%q %v %s %v %v %q %v %s", r.Argv, r.Env, r.Cwd, r.Mkdir, *r.User, r.StdinBase64, r.Timeout.D(), r.Zygote)
	if want := `["sh" "-c" "echo $K"] map[K:v] /tmp true {5 6} "in" 2s py`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s := r.Session
	got = fmt.Sprintf("%s %d %v %d %v %v %v %v %v", s.Profile, *s.Memory, *s.CPUs, *s.PIDs, *s.WritableRoot, s.Mounts, *s.Persistent, s.IdleTTL.D(), *s.Network)
	if want := `p 67108864 0.5 -1 true [{/srv/x /x true  }] true 1m0s false`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// If the daemon refuses the size of the body, the message says that stdin is too long and what to do.
func TestExecStdinTooLong(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		refuse(w, 413, apitypes.CodeBodyTooLarge, "the body must have at most 1 MiB")
	})
	for size, want := range map[int]string{
		800 << 10:        "boxd: stdin of 800 KiB is longer than this daemon accepts: copy it to a file with boxd cp, or use boxd start and boxd attach\n",
		maxExecStdin + 1: "boxd: stdin is longer than 8 MiB: copy it to a file with boxd cp, or use boxd start and boxd attach\n",
	} {
		v := newInvocation(t)
		v.Stdin = strings.NewReader(strings.Repeat("x", size))
		if status := d.callWith(v, "exec", "s", "-i", "--", "wc"); status != 125 || v.stderr.String() != want {
			t.Errorf("%d bytes: status %d, %q, want %q", size, status, v.stderr.String(), want)
		}
	}
}

// A missing session is created, but not with --no-create.
func TestExecMakesTheSession(t *testing.T) {
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		if !strings.Contains(r.body, `"session":`) {
			refuse(w, 404, apitypes.CodeSessionNotFound, `session "s": not found`)
			return
		}
		stream(w, apitypes.ExecEvent{Result: &apitypes.ExecResult{ExitCode: number(0), Verdict: "exited", Created: true}})
	})
	if status, v := d.call("exec", "s", "--", "true"); status != 0 || v.stderr.Len() > 0 {
		t.Errorf("status %d: %s", status, v.stderr.String())
	}
	d.wantRequests(`POST /v1/sessions/s/exec {"argv":["true"]}`, `POST /v1/sessions/s/exec {"argv":["true"],"session":{}}`)
	status, v := d.call("exec", "s", "--no-create", "--", "true")
	if status != 125 || v.stderr.String() != "boxd: session \"s\": not found\n" || len(d.requests) != 3 {
		t.Errorf("--no-create: status %d, %q", status, v.stderr.String())
	}
}

func TestExecStatus(t *testing.T) {
	for _, c := range []struct {
		result apitypes.ExecResult
		status int
		stderr string
	}{
		{apitypes.ExecResult{Verdict: "timeout", Limit: "1s", Status: 124}, 124, "verdict: timeout (limit 1s)\n"},
		{apitypes.ExecResult{Verdict: "oom", Limit: "64 MiB", Status: 137, Signal: "SIGKILL"}, 137, "verdict: oom (limit 64 MiB)\n"},
		{apitypes.ExecResult{Verdict: "signaled", Signal: "SIGTERM", Status: 143}, 143, ""},
		{apitypes.ExecResult{Verdict: "box-lost", Status: 137}, 137, "verdict: box-lost\n"},
		{apitypes.ExecResult{Verdict: "exited", Recreated: true}, 0, "boxd: the session's box was lost, this is a new one on the same workspace\n"},
	} {
		d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) { stream(w, apitypes.ExecEvent{Result: &c.result}) })
		if status, v := d.call("exec", "s", "--", "x"); status != c.status || v.stderr.String() != c.stderr {
			t.Errorf("%+v: status %d, %q, want %d, %q", c.result, status, v.stderr.String(), c.status, c.stderr)
		}
	}
	for code, want := range map[string]int{"program_not_found": 127, "program_not_executable": 126, "session_conflict": 125} {
		d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) { refuse(w, 422, code, "no") })
		if status, v := d.call("exec", "s", "--json", "--", "x"); status != want || v.stderr.String() != "boxd: no\n" || v.stdout.String() != fmt.Sprintf("{\"exit_code\":null,\"status\":%d,\"error\":\"no\"}\n", want) {
			t.Errorf("%s: status %d, %q, %q", code, status, v.stdout.String(), v.stderr.String())
		}
	}
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) { stream(w, apitypes.ExecEvent{Stream: "stdout", Data: "part"}) })
	if status, v := d.call("exec", "s", "--", "x"); status != 125 || !strings.Contains(v.stderr.String(), "ended before the command did") {
		t.Errorf("cut stream: status %d, %q", status, v.stderr.String())
	}
}

func TestExecJSON(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		send(w, apitypes.ExecResult{ExitCode: number(3), Status: 3, Verdict: "exited", Stdout: "hi\n"})
	})
	status, v := d.call("exec", "s", "--json", "--", "x")
	var r apitypes.ExecResult
	if err := json.Unmarshal(v.stdout.Bytes(), &r); err != nil || status != 3 || r.Stdout != "hi\n" || *r.ExitCode != 3 {
		t.Errorf("status %d, %q, %v", status, v.stdout.String(), err)
	}
}
