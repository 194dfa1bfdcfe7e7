package cli

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
)

// answers serves fixed answers by method and path.
func answers(t *testing.T, table map[string]any) func(seen, http.ResponseWriter) {
	return func(r seen, w http.ResponseWriter) {
		answer, ok := table[r.what]
		if !ok {
			refuse(w, 404, "not_found", "nothing at "+r.what)
			return
		}
		send(w, answer)
	}
}

func TestLists(t *testing.T) {
	now := time.Now()
	session := apitypes.Session{ID: "s1", Tenant: "default", State: "running", Profile: "default", Memory: 64 << 20, PIDs: -1, CPUs: 0.5, CreatedAt: now, LastUsedAt: now, Processes: 2,
		Published:     []apitypes.Published{{Port: 80, Host: 20000, Address: "127.0.0.1"}, {Port: 81, Host: 20001, Address: "127.0.0.1", Reason: "in use"}, {Port: 82, Host: 20002, Reason: "no pool"}},
		WorkspaceMode: "rw", WorkspaceTarget: "/data", WorkspaceSize: 1 << 30, Unenforced: "workspace_size 1 GiB: no loop devices", Warnings: []string{"no network yet"}, Sensitive: &apitypes.Sensitive{Since: now, Reason: "volume \"v\" is"}}
	process := apitypes.Process{ID: "p1", Session: "s1", State: "exited", Argv: []string{"sh", "-c", "evil\x1b[2J"}, ExitCode: number(3), StartedAt: now, Stdout: &apitypes.Stream{End: 2048}}
	history := apitypes.History{Execs: []apitypes.ExecRecord{{ID: 12, Session: "s1", Verdict: "oom", Signal: "SIGKILL", Argv: []string{"sh", "-c", "evil\x1b[2J"},
		Stdout: "first\nlast\n", StdoutMissing: &apitypes.Missing{Offset: 6, Bytes: 99}}}}
	usage := apitypes.UsageList{Usage: []apitypes.UsageRow{{Tenant: "default", User: "a,b", Execs: 3, CPU: apitypes.Duration(1500 * time.Millisecond), IOWriteBytes: 2048, SessionTime: 90, MemoryGiBSeconds: 1.25}}}
	d := newFakeDaemon(t, answers(t, map[string]any{
		"GET /v1/sessions":                            apitypes.SessionList{Sessions: []apitypes.Session{session}},
		"GET /v1/sessions/s1":                         session,
		"GET /v1/sessions/s1/processes":               apitypes.ProcessList{Processes: []apitypes.Process{process}},
		"GET /v1/sessions/s1/usage":                   apitypes.Usage{Memory: new(int64)},
		"GET /v1/sessions/s1/execs?limit=20":          history,
		"GET /v1/sessions/s1/execs?limit=20&output=1": history,
		"GET /v1/volumes":                             apitypes.VolumeList{Volumes: []apitypes.Volume{{Name: "v", Size: 1 << 20, Sensitive: session.Sensitive}}},
		"GET /v1/sensitive-paths":                     apitypes.SensitivePathList{Paths: []apitypes.SensitivePath{{Path: "/srv/x", Tenant: "acme", Sensitive: apitypes.Sensitive{Since: now, Reason: `session "s"`}}}},
		"GET /v1/usage":                               usage,
		"GET /v1/usage?by=user":                       usage,
		"GET /v1/status": apitypes.Status{Reason: "the launcher is gone", Version: "9",
			Engines:      []apitypes.EngineState{{Engine: "oci", Isolation: "gvisor", Available: true}, {Engine: "oci", Isolation: "namespaces"}},
			Capabilities: []apitypes.Difference{{Engine: "oci", Isolation: "gvisor", Capability: "ports", Instead: "none are listed"}}},
	}))
	for _, c := range []struct {
		args   string
		status int
		parts  []string
	}{
		{"sessions ls", 0, []string{"SESSION", "SENSITIVE\n", "s1", "running", "\tyes\n"}},
		{"volumes ls", 0, []string{"VOLUME", "SENSITIVE\n", "v", "\tyes\n"}},
		{"sensitive ls", 0, []string{"PATH", "/srv/x\tacme\tsince 2", `: session "s"`}},
		{"sensitive ls -q", 0, []string{"/srv/x\n"}},
		{"sessions ls --json", 0, []string{`{"sessions":[{"id":"s1",`}},
		{"sessions show s1", 0, []string{"memory", "64 MiB", "pids", "unlimited", "0.5", "rw at /data, at most 1 GiB\n", "not enforced", "no loop devices", "warning", "no network yet", "sensitive", `: volume "v" is`,
			"\t127.0.0.1:20000 leads to port 80\n", "\tport 81: 127.0.0.1:20001 is closed: in use\n", "\tport 82: port 20002 of the host is closed: no pool\n"}},
		{"sessions show s1 --json", 0, []string{`"id":"s1"`}},
		{"ps -a", 0, []string{"p1", "exited", "3", "2 KiB", "sh -c evil?[2J"}},
		{"ps s1 -a --json", 0, []string{`{"processes":[{"id":"p1"`, `\u001b[2J`}},
		{"history s1", 0, []string{"ID\tENDED\tSESSION", "12\t", "\ts1\toom\tSIGKILL\t", "sh -c evil?[2J"}},
		{"history s1 --output", 0, []string{" s1 oom SIGKILL sh -c evil?[2J\nfirst\n\n[99 bytes are missing]\nlast\n"}},
		{"history s1 -q", 0, []string{"12\n"}},
		{"usage", 0, []string{"TENANT\tEXECS\tPROCESSES\tCPU\tWALL\tREAD\tWRITTEN\tSESSION TIME\tGIB-SECONDS\ndefault\t3\t0\t1.50 s\t0.00 ms\t0 B\t2 KiB\t1m30s\t1.2\n"}},
		{"usage --by user --csv", 0, []string{"tenant,user,execs,processes,cpu,wall,read,written,session_time,memory_gib_seconds\ndefault,\"a,b\",3,0,1.5,0,0,2048,90,1.25\n"}},
		{"status", 1, []string{"available", "no: the launcher is gone", "differs in ports", "none are listed"}},
		{"status --json", 1, []string{`"available":false`}},
		{"top --once", 0, []string{"s1", "0 B", "64 MiB"}},
		{"top --once --json", 0, []string{`"sessions":[{"session":"s1"`, `"memory":0`}},
	} {
		status, v := d.call(strings.Split(c.args, " ")...)
		for _, part := range c.parts {
			if status != c.status || !strings.Contains(v.stdout.String(), part) || v.stderr.Len() > 0 {
				t.Errorf("boxd %s: status %d, %q, %q, want %d and %q", c.args, status, v.stdout.String(), v.stderr.String(), c.status, part)
			}
		}
	}
	if status, v := d.call("sessions", "show", "s2"); status != 125 || !strings.Contains(v.stderr.String(), "nothing at GET /v1/sessions/s2") {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
}

// A name that somebody else has chosen is no formula for the spreadsheet that opens the table.
func TestUsageForSpreadsheets(t *testing.T) {
	evil := []string{"=HYPERLINK(1)", "+1", "-1+2", "@SUM(1)", "\t=1", "\r=1", "\n=1", " =1"}
	var list apitypes.UsageList
	for _, name := range evil {
		list.Usage = append(list.Usage, apitypes.UsageRow{Tenant: name, Profile: name, User: name, Session: name, Day: "2026-01-02"})
	}
	list.Usage = append(list.Usage, apitypes.UsageRow{Tenant: "a-b", Profile: "a=b", User: "me@example.com", Session: "a+b"})
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) { send(w, list) })
	status, v := d.call("usage", "--csv", "--by", "day", "--by", "profile", "--by", "user", "--by", "session")
	rows, err := csv.NewReader(&v.stdout).ReadAll()
	if status != 0 || err != nil || len(rows) != len(evil)+2 {
		t.Fatalf("status %d, %v, %d rows", status, err, len(rows))
	}
	for i, row := range rows[1:] {
		for at, cell := range row[:5] {
			if i < len(evil) && at != 1 && cell != "'"+evil[i] {
				t.Errorf("cell %q of %q", cell, evil[i])
			}
		}
	}
	if got := strings.Join(rows[len(rows)-1][:5], " "); got != "a-b  a=b me@example.com a+b" {
		t.Errorf("harmless names: %q", got)
	}
}

func TestStartAndStop(t *testing.T) {
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) { send(w, apitypes.Process{ID: "p", State: "running"}) })
	for _, args := range []string{"start s --id p --history 64K --drop-oldest -- srv", "start s -t --id p -- sh",
		"start s --id p --drop-stderr --process-memory 64M --workspace-size 1G --workspace-inodes 99 --workspace-target /data -- srv",
		"start s --id p --workspace-size 0 -- srv",
		"stop s p", "stop s p --grace 1s", "sessions rm s t"} {
		if status, v := d.call(strings.Split(args, " ")...); status != 0 {
			t.Errorf("boxd %s: status %d, %q", args, status, v.stderr.String())
		}
	}
	d.wantRequests(
		`POST /v1/sessions/s/processes {"id":"p","argv":["srv"],"history":65536,"drop_oldest":true}`,
		`POST /v1/sessions/s/processes {"id":"p","argv":["sh"],"env":{"TERM":"vt220"},"tty":{"rows":24,"cols":80}}`,
		`POST /v1/sessions/s/processes {"id":"p","argv":["srv"],"drop_stderr":true,"memory":67108864,"session":{"workspace_size":1073741824,"workspace_inodes":99,"workspace_target":"/data"}}`,
		`POST /v1/sessions/s/processes {"id":"p","argv":["srv"],"session":{"workspace_size":0}}`,
		`POST /v1/sessions/s/processes/p/stop {}`,
		`POST /v1/sessions/s/processes/p/stop {"grace":1}`,
		`DELETE /v1/sessions/s`,
		`DELETE /v1/sessions/t`,
	)
}

func TestLogs(t *testing.T) {
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		w.Header().Set("X-Boxd-Offset", "12")
		w.Header().Set("X-Boxd-Gap", "2")
		fmt.Fprint(w, "text\xff")
	})
	status, v := d.call("logs", "-f", "--stream", "stderr", "--offset", "10", "s", "p")
	if status != 0 || v.stdout.String() != "text\xff" || v.stderr.String() != "boxd: 2 bytes of stderr are gone\n" {
		t.Errorf("status %d, %q, %q", status, v.stdout.String(), v.stderr.String())
	}
	status, v = d.call("logs", "--json", "s", "p")
	if want := `{"stream":"stdout","offset":12,"gone":2,"data_base64":"dGV4dP8="}` + "\n"; status != 0 || v.stdout.String() != want {
		t.Errorf("status %d, %q, want %q", status, v.stdout.String(), want)
	}
	d.call("logs", "--since", "1h", "--tail", "0", "--timestamps", "s", "p")
	d.call("logs", "--since", "2026-11-22T12:00:00Z", "--tail", "all", "s", "p")
	d.wantRequests("GET /v1/sessions/s/processes/p/logs?follow=1&offset=10&stream=stderr", "GET /v1/sessions/s/processes/p/logs?stream=stdout",
		"GET /v1/sessions/s/processes/p/logs?since=1h&stream=stdout&tail=0&timestamps=1", "GET /v1/sessions/s/processes/p/logs?since=2026-11-22T12%3A00%3A00Z&stream=stdout")
}

func TestEvents(t *testing.T) {
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "id: 4\nevent: session\ndata: {\"id\":4,\"time\":\"2026-11-22T12:00:00Z\",\"type\":\"session.created\",\"session\":\"s\\u0007\",\"details\":{\"b\":1,\"a\":\"x\"}}\n\n")
		fmt.Fprint(w, "event: missed\ndata: {\"missed\":3}\n\n")
	})
	status, v := d.call("events")
	if status != 125 || !strings.HasSuffix(v.stdout.String(), " session.created session=s? a=x b=1\n") || !strings.HasPrefix(v.stdout.String(), "2026-11-22 ") || v.stderr.String() != "boxd: 3 events were missed\nboxd: the daemon ended the event stream\n" {
		t.Errorf("status %d, %q, %q", status, v.stdout.String(), v.stderr.String())
	}
}

func TestCompletionOfNames(t *testing.T) {
	d := newFakeDaemon(t, answers(t, map[string]any{
		"GET /v1/sessions":              apitypes.SessionList{Sessions: []apitypes.Session{{ID: "s1", State: "running"}}},
		"GET /v1/sessions/s1/processes": apitypes.ProcessList{Processes: []apitypes.Process{{ID: "p1", State: "exited"}}},
	}))
	for args, want := range map[string]string{"__complete exec ": "s1\trunning\n", "__complete attach s1 ": "p1\texited\n", "__complete sessions rm ": "s1\trunning\n", "__complete cp x ": "s1:\trunning\n"} {
		if status, v := d.call(strings.Split(args, " ")...); status != 0 || !strings.HasPrefix(v.stdout.String(), want) {
			t.Errorf("%s: status %d, %q, want %q", args, status, v.stdout.String(), want)
		}
	}
	none := &fakeDaemon{t: t, socket: "/nonexistent"}
	if status, v := none.call("__complete", "exec", ""); status != 0 || !strings.HasPrefix(v.stdout.String(), ":") {
		t.Errorf("without a daemon: status %d, %q", status, v.stdout.String())
	}
}
