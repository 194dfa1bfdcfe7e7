package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

func TestStartReady(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) { send(w, apitypes.Process{ID: "p"}) })
	for _, flags := range [][]string{
		{"--ready-line", "is up", "--ready-timeout", "90s", "--wait"},
		{"--ready-port", "80", "--live-every", "10", "--restart", "on-failure:3"},
		{"--ready-http", "80/x"},
		{"--ready-command", "test -e x", "--restart", "no"},
	} {
		if status, v := d.call(append(append([]string{"start", "s", "--id", "p"}, flags...), "--", "x")...); status != 0 {
			t.Errorf("%q: status %d, %s", flags, status, v.stderr.String())
		}
	}
	const start = `POST /v1/sessions/s/processes {"id":"p","argv":["x"],`
	d.wantRequests(
		start+`"ready":{"line":"is up","timeout":90},"wait":true}`,
		start+`"ready":{"port":80,"live_every":10},"restart":"on-failure:3"}`,
		start+`"ready":{"http":"80/x"}}`,
		start+`"ready":{"command":["/bin/sh","-c","test -e x"]}}`,
	)
	for flags, want := range map[string]string{
		"--wait":                         "--wait needs --ready-line",
		"--live-every 1s":                "--live-every needs --ready-line",
		"--ready-timeout 1s":             "--ready-timeout needs --ready-line",
		"--ready-port 1 --ready-line x":  "--ready-port with --ready-line: cannot be used together",
		"--ready-port x":                 "--ready-port",
		"--ready-port 0":                 "--ready-port \"0\": must not be empty or 0",
		"--ready-line=":                  "--ready-line \"\": must not be empty",
		"--ready-port 1 --live-every 0s": "--live-every",
	} {
		args := append(strings.Fields("start s --id p "+flags), "--", "x")
		if status, v := d.call(args...); status != 125 || !strings.Contains(v.stderr.String(), want) {
			t.Errorf("%s: status %d, %s", flags, status, v.stderr.String())
		}
	}
}

// A start that fails shows what the program has written, and names the flags.
func TestStartNotReady(t *testing.T) {
	problem := apitypes.Problem{Status: 422, Code: apitypes.CodeNotReady, Detail: "it failed", Output: "a\n\nb\x1b]0;title\a\n\n"}
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(422)
		json.NewEncoder(w).Encode(problem)
	})
	args := strings.Fields("start s --id p --ready-port 1 --wait -- x")
	if status, v := d.call(args...); status != 125 || v.stderr.String() != "a\n\nb?]0;title?\nboxd: it failed\n" {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
	for field, flag := range map[string]string{"ready.http": "--ready-http", "ready.live_every": "--live-every", "restart": "--restart"} {
		problem = apitypes.Problem{Status: 422, Code: apitypes.CodeInvalid, Field: field, Detail: field + " bad: must be better"}
		if _, v := d.call(args...); v.stderr.String() != "boxd: "+flag+" bad: must be better\n" {
			t.Errorf("%s: %q", field, v.stderr.String())
		}
	}
}

// TestStartPublish: the ports that the daemon chose are named on stderr.
func TestStartPublish(t *testing.T) {
	d := newFakeDaemon(t, answers(t, map[string]any{
		"POST /v1/sessions/s/processes": apitypes.Process{ID: "p"},
		"GET /v1/sessions/s": apitypes.Session{ID: "s", Published: []apitypes.Published{
			{Port: 80, Host: 20001, Address: "127.0.0.1"}, {Port: 81, Host: 20000, Address: "127.0.0.1"}}},
	}))
	for flags, want := range map[string]string{
		"--publish 80 --publish 20000:81":       "boxd: 127.0.0.1:20001 leads to port 80 of the box\n",
		"--publish 20001:80 --publish 20000:81": "",
		"--publish auto:80 --publish 81 --json": "boxd: 127.0.0.1:20001 leads to port 80 of the box\nboxd: 127.0.0.1:20000 leads to port 81 of the box\n",
	} {
		args := append(strings.Fields("start s --id p "+flags), "--", "x")
		if status, v := d.call(args...); status != 0 || v.stderr.String() != want {
			t.Errorf("%s: status %d, %q, want %q", flags, status, v.stderr.String(), want)
		}
	}
}
