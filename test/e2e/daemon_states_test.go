package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/testutil"
)

// apiClient asks the daemon's socket.
func (d *daemon) apiClient() *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.socket())
	}}
	d.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// ask sends a request and returns the answer with its body, unless that has no end.
func (d *daemon) ask(c *http.Client, method, path, body string) (status int, answer []byte) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://boxd"+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Do(req)
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		return resp.StatusCode, nil
	}
	if answer, err = io.ReadAll(resp.Body); err != nil {
		d.t.Errorf("%s %s: the answer of status %d ends early: %v", method, path, resp.StatusCode, err)
	}
	return resp.StatusCode, answer
}

// oddState is what a session is in when every operation is tried on it.
type oddState struct {
	name    string
	session string // fields of the request that makes it; "-": there is none
	shell   string // brings it there: a managed process p, which is ready when it has written a byte
	user    string // of commands, as a field of a request
	path    string // of files
	wrong   bool   // wrong values are tried as well
	// want is the code of some requests; "" means success.
	want map[string]string
}

// The requests that a table of codes names.
const (
	plainExec  = "exec: plain"
	plainStart = "start-process: plain"
	plainWrite = "write-file: plain"
	plainList  = "list-files: workspace"
	plainStat  = "stat-file: workspace"
	plainMkdir = "mkdir: plain"
)

func oddStates(root string) []oddState {
	const hold = "; echo; exec sleep 3600"
	at := apitypes.CodeBoxAtLimit
	return []oddState{
		{name: "plain", path: "f", wrong: true, want: map[string]string{plainExec: "", plainStart: "", plainWrite: "", plainList: "", plainMkdir: apitypes.CodeFileExists}},
		{name: "missing directory", path: "no/such/f", want: map[string]string{plainWrite: apitypes.CodeNoFile}},
		{name: "file for a directory", shell: "touch f" + hold, path: "f/x", want: map[string]string{plainWrite: apitypes.CodeFileType}},
		{name: "at the pids limit", session: `"pids":6`, shell: "for i in 1 2 3 4 5; do sleep 3600 & done" + hold, path: "f",
			want: map[string]string{plainExec: at, plainStart: at, plainWrite: at, plainList: at, plainStat: at, plainMkdir: at}},
		{name: "full workspace", session: `"workspace_size":"1M"`, shell: "dd if=/dev/zero of=full bs=512 2>&1; dd if=/dev/zero of=more bs=512 2>&1" + hold, path: "f", want: map[string]string{plainWrite: apitypes.CodeNoSpace, plainExec: ""}},
		{name: "read-only workspace", session: `"workspace_mode":"ro"`, path: "f", want: map[string]string{plainWrite: apitypes.CodeFilePermission, plainExec: ""}},
		{name: "no workspace", session: `"workspace_mode":"none"`, path: "f", want: map[string]string{plainExec: ""}},
		{name: "another user", shell: "mkdir -m 700 closed; touch closed/f" + hold, user: `"user":{"uid":1000,"gid":1000}`, path: "closed/f", want: map[string]string{plainExec: "", plainStart: ""}},
		{name: "closed directory of the host", session: `"workspace":"` + root + `"`, user: `"user":{"uid":1000,"gid":1000}`, path: "f",
			want: map[string]string{plainExec: apitypes.CodeInvalid, plainStart: apitypes.CodeInvalid}},
		{name: "lost box", shell: "echo; exec sleep 3600", path: "f", want: map[string]string{plainExec: "", plainWrite: ""}},
		{name: "paused", shell: "echo; exec sleep 3600", path: "f", want: map[string]string{plainExec: apitypes.CodePaused, plainStart: apitypes.CodePaused,
			plainWrite: apitypes.CodePaused, plainList: apitypes.CodePaused, plainStat: apitypes.CodePaused, plainMkdir: apitypes.CodePaused}},
		{name: "no session", session: "-", path: "f", want: map[string]string{plainExec: apitypes.CodeSessionNotFound, plainStart: apitypes.CodeSessionNotFound,
			plainWrite: apitypes.CodeSessionNotFound, plainList: apitypes.CodeSessionNotFound, plainMkdir: apitypes.CodeSessionNotFound}},
	}
}

// Whatever a client asks of a session in whatever state, the answer never is that
// something unexpected went wrong, and a value that does not do is named.
func TestNoAnswerIsInternal(t *testing.T) {
	testutil.RequireRoot(t)
	testutil.Long(t)
	root, err := os.MkdirTemp("", "boxd-e2e-root-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	d := startDaemon(t, "--allow-mount-root", root)
	c := d.apiClient()
	status, raw := d.ask(c, "GET", "/v1/openapi.json", "")
	var doc struct {
		Paths map[string]map[string]struct{ OperationID string }
	}
	if err := json.Unmarshal(raw, &doc); err != nil || status != 200 {
		t.Fatalf("%d, %v", status, err)
	}
	for n, s := range oddStates(root) {
		id := fmt.Sprint("s", n)
		d.bring(c, id, s)
		tried := map[string]bool{}
		for _, r := range requestsIn(s, id) {
			tried[r.op] = true
			d.try(c, s, r)
		}
		for path, methods := range doc.Paths {
			for method, op := range methods {
				if !tried[op.OperationID] {
					t.Errorf("%s %s: %s is not tried", method, path, op.OperationID)
				}
			}
		}
	}
}

// bring makes session id and brings it to state s.
func (d *daemon) bring(c *http.Client, id string, s oddState) {
	d.t.Helper()
	if s.session == "-" {
		return
	}
	status, answer := d.ask(c, "POST", "/v1/sessions", object(`"id":"`+id+`"`, s.session))
	var made apitypes.Session
	if err := json.Unmarshal(answer, &made); err != nil || status != 200 {
		d.t.Fatalf("%s: %d %s", s.name, status, answer)
	}
	if s.shell != "" {
		line, _ := json.Marshal(s.shell)
		if status, answer := d.ask(c, "POST", "/v1/sessions/"+id+"/processes", object(`"id":"p"`, `"shell":`+string(line))); status != 201 {
			d.t.Fatalf("%s: %d %s", s.name, status, answer)
		}
		d.ask(c, "GET", "/v1/sessions/"+id+"/processes/p/logs?follow=1&limit=1", "")
	}
	if s.name == "paused" {
		if status, answer := d.ask(c, "POST", "/v1/sessions/"+id+"/pause", ""); status != 200 {
			d.t.Fatalf("%s: %d %s", s.name, status, answer)
		}
	}
	if s.name == "lost box" {
		d.killInit(made.Box)
		d.ask(c, "GET", "/v1/sessions/"+id+"/processes/p/logs?follow=1", "") // ends when the daemon knows
	}
}

// killInit kills PID 1 of a box.
func (d *daemon) killInit(box string) { d.killIn(box, "\x00agent\x00") }

// killIn kills the process of a box whose command line, in which arguments end with NUL, contains part.
func (d *daemon) killIn(box, part string) {
	d.t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, file := range all {
		groups, _ := os.ReadFile(file) // it may have ended
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if !strings.Contains(string(groups), box) || !strings.Contains(string(args), part) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			d.t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			d.t.Fatal(err)
		}
		return
	}
	d.t.Fatalf("box %s has no process %q", box, part)
}

// apiRequest is a request to try; name has the operation and the special case.
type apiRequest struct{ op, name, method, path, body string }

// object is a JSON object of the fields that are not empty.
func object(fields ...string) string {
	var have []string
	for _, f := range fields {
		if f != "" {
			have = append(have, f)
		}
	}
	return "{" + strings.Join(have, ",") + "}"
}

// requestsIn are requests to all operations, those last that change the session for good.
func requestsIn(s oddState, id string) (list []apiRequest) {
	session := "/v1/sessions/" + id
	process := session + "/processes/p"
	long, content := strings.Repeat("x", 300), strings.Repeat("content", 10_000)
	add := func(op, name, method, path, body string) {
		list = append(list, apiRequest{op, op + ": " + name, method, path, body})
	}
	for _, name := range []string{"healthz", "readyz", "metrics"} {
		add(name, "", "GET", "/"+name, "")
	}
	for _, name := range []string{"openapi", "status", "doctor", "errors", "events", "profiles"} {
		path := "/v1/" + name
		if name == "openapi" {
			path += ".json"
		}
		add(name, "", "GET", path, "")
	}
	add("login", "no token", "POST", "/v1/login", `{}`)
	add("login", "a token that there is not", "POST", "/v1/login", `{"token":"x"}`)
	add("get-login", "", "GET", "/v1/login", "")
	add("logout", "", "DELETE", "/v1/login", "")
	add("page", "", "GET", "/ui", "")
	add("page-file", "one that there is not", "GET", "/ui/none.js", "")
	add("list-sessions", "", "GET", "/v1/sessions", "")
	add("get-session", "", "GET", session, "")
	add("usage", "", "GET", session+"/usage", "")
	add("ports", "", "GET", session+"/ports", "")
	add("network", "", "GET", session+"/network", "")
	for _, port := range []string{"0", "x", "65536"} { // answers about a port that can exist are pages
		add("port", port, "GET", session+"/ports/"+port, "")
		add("tunnel", port, "GET", session+"/tunnels/"+port, "")
	}
	for _, body := range []string{`{"port":80}`, `{"port":0}`, `{"port":80,"ttl":-1}`} {
		add("make-link", body, "POST", session+"/links", body)
	}
	add("revoke-links", "", "DELETE", session+"/links", "")
	add("list-processes", "", "GET", session+"/processes", "")
	add("get-process", "", "GET", process, "")
	add("logs", "", "GET", process+"/logs?offset=99999999", "")
	add("relay", "", "GET", process+"/relay", "")
	for _, fields := range []string{`"workspace":"/no/such"`, `"hostname":"-"`, `"image":"no"`, `"mounts":[{"source":"relative","target":"/x"}]`, `"workspace_target":"/"`,
		`"memory":"9E"`, `"profile":"no"`, `"workspace_mode":"x"`, `"env":{"a\u0000":"b"}`, `"user":{"uid":-1,"gid":0}`} {
		if !s.wrong {
			break
		}
		add("ensure-session", fields, "POST", "/v1/sessions", object(`"id":"bad"`, fields))
	}
	add("ensure-session", "", "POST", "/v1/sessions", `{}`)

	for _, fields := range []string{`"argv":["true"]`, `"argv":[]`, `"argv":["true"],"timeout":-1`, `"argv":["true"],"cwd":"relative"`, `"argv":["no/such"]`, `"argv":["true"],"box":{"memory":"9E"}`,
		`"argv":["true"],"box":{"image":"x"}`, `"argv":["true"],"box":{"profile":"no"}`} {
		if s.wrong || fields == `"argv":["true"]` {
			add("run", fields, "POST", "/v1/run", object(fields))
		}
	}
	add("session-history", "", "GET", session+"/execs", "")
	add("history", "", "GET", "/v1/execs?since=1h&verdict=exited", "")
	add("tenant-usage", "", "GET", "/v1/usage?by=session", "")
	add("list-sensitive-paths", "", "GET", "/v1/sensitive-paths", "")
	for _, query := range []string{"", "?path=", "?path=none", "?path=/none", "?path=volume:x/none", "?path=%00"} {
		add("forget-sensitive-path", query, "DELETE", "/v1/sensitive-paths"+query, "")
	}
	add("list-volumes", "", "GET", "/v1/volumes", "")
	for _, fields := range []string{`"name":"../x"`, `"name":""`, `"name":"v-` + id + `","size":"1"`, `"name":"v-` + id + `","size":"9E"`} {
		if !s.wrong {
			break
		}
		add("create-volume", fields, "POST", "/v1/volumes", "{"+fields+"}")
	}
	volume := "/v1/volumes/v-" + id
	add("create-volume", "plain", "POST", "/v1/volumes", `{"name":"v-`+id+`","size":"1M"}`)
	add("get-volume", "", "GET", volume, "")
	add("resize-volume", "", "PATCH", volume, `{"size":"2M"}`)
	add("remove-volume", "", "DELETE", volume, "")
	add("remove-volume", "again", "DELETE", volume, "")
	add("list-images", "", "GET", "/v1/images", "")
	add("collect-images", "", "POST", "/v1/images/gc", "")
	for _, reference := range []string{"", "none", "-", "a%20b", "%00", "A:B:C@sha256:0", long + long, "../x"} {
		if !s.wrong && reference != "none" {
			continue
		}
		quoted := strings.NewReplacer("%20", " ", "%00", `\u0000`).Replace(reference)
		add("get-image", reference, "GET", "/v1/images/inspect?reference="+reference, "")
		add("remove-image", reference, "DELETE", "/v1/images?shared=1&reference="+reference, "")
		add("verify-image", reference, "POST", "/v1/images/verify", `{"reference":"`+quoted+`"}`)
		add("import-image", reference, "POST", "/v1/images/import?name="+reference, content)
		if reference != "none" { // no registry is asked
			add("pull-image", reference, "POST", "/v1/images", `{"reference":"`+quoted+`"}`)
		}
	}
	add("pull-image", "platform", "POST", "/v1/images", `{"reference":"no.such.invalid/x","platform":"x/y/z/0"}`)
	for _, fields := range []string{`"language":"no"`, `"language":"bash","file":"../x"`, `"language":"bash","files":[{"path":"../x"}]`, `"language":"bash","files":[{"path":"/proc/x"}]`, `"file":"x.nothing"`} {
		if !s.wrong {
			break
		}
		add("code", fields, "POST", session+"/code", object(`"code":"true"`, fields))
	}
	add("code", "plain", "POST", session+"/code", object(`"language":"bash"`, `"code":"true"`, s.user))

	program, shell := `"argv":["true"]`, `"shell":"true"`
	add("exec", "plain", "POST", session+"/exec", object(program, s.user))
	for _, fields := range []string{`"cwd":"/no/such"`, `"cwd":"/etc/passwd"`, `"cwd":"/root"`, `"cwd":"/usr/x","mkdir":true`, `"cwd":"/etc/passwd/x","mkdir":true`, `"cwd":"/proc/self/cwd"`,
		`"cwd":"relative"`, `"cwd":"/workspace/` + long + `"`, `"cwd":"/workspace/` + long + `","mkdir":true`, `"cwd":"/workspace/new","mkdir":true`, `"cwd":"/` + strings.Repeat("x/", 3000) + `"`,
		`"env":{"A":"\u0000"}`, `"user":{"uid":65535,"gid":0}`, `"user":{"uid":7,"gid":70000}`} {
		if !s.wrong {
			break
		}
		add("exec", fields, "POST", session+"/exec", object(program, fields))
		add("exec", "shell, "+fields, "POST", session+"/exec", object(shell, fields))
		add("start-process", fields, "POST", session+"/processes", object(`"id":"new"`, program, fields))
	}
	for _, argv := range []string{`["/etc"]`, `["/etc/passwd"]`, `["no-such"]`, `["/workspace/` + long + `"]`, `["/` + strings.Repeat("x/", 3000) + `"]`, `[""]`, `["true","\u0000"]`} {
		if !s.wrong {
			break
		}
		add("exec", argv, "POST", session+"/exec", object(`"argv":`+argv, s.user))
		add("start-process", argv, "POST", session+"/processes", object(`"id":"new"`, `"argv":`+argv, s.user))
	}
	add("start-process", "terminal", "POST", session+"/processes", object(`"id":"tty"`, program, `"tty":{"rows":1,"cols":1}`))
	add("start-process", "plain", "POST", session+"/processes", object(`"id":"q"`, program, s.user))
	add("start-process", "id", "POST", session+"/processes", object(`"id":"../x"`, program))

	for _, f := range []struct{ op, method, path, more, body string }{
		{"list-files", "GET", "", "", ""}, {"stat-file", "GET", "/stat", "", ""}, {"read-file", "GET", "/content", "&limit=10", ""},
		{"write-file", "PUT", "/content", "", content}, {"write-file", "PUT", "/content", "&append=1", content}, {"remove-file", "DELETE", "/content", "", ""},
	} {
		for _, path := range []string{"/etc/passwd", "/proc/self/mem", "/proc/1/root", "/dev/null", "/dev/full", "/dev/ptmx", "/usr/x", "%00", "/proc/self/fd/0", long, strings.Repeat("x/", 3000), "/"} {
			if s.wrong {
				add(f.op, path+f.more, f.method, session+"/files"+f.path+"?path="+path+f.more, f.body)
			}
		}
		add(f.op, "workspace"+f.more, f.method, session+"/files"+f.path+"?path=."+f.more, f.body)
		add(f.op, "plain"+f.more, f.method, session+"/files"+f.path+"?path="+s.path+f.more, f.body)
		if f.op == "write-file" {
			add("mkdir", "after", "POST", session+"/files/mkdir", object(`"path":"`+s.path+`"`, `"parents":true`))
		}
	}
	add("write-file", "again", "PUT", session+"/files/content?path="+s.path, content)
	for _, path := range []string{"/etc/passwd", "/proc/self/mem", "/dev/null", "/usr/bin", "%00", long, strings.Repeat("x/", 3000), "."} {
		if s.wrong {
			add("pack-files", path, "GET", session+"/files/tar?glob=x*&path="+path, "")
			add("unpack-files", path, "PUT", session+"/files/tar?path="+path, content)
			add("unpack-files", "empty, "+path, "PUT", session+"/files/tar?parents=1&path="+path, strings.Repeat("\x00", 1024))
			add("copy-files", path, "POST", session+"/files/copy", object(`"from":"`+path+`"`, `"path":"copied"`))
			add("rename-file", path, "POST", session+"/files/rename", object(`"path":"`+path+`"`, `"to":"renamed"`))
		}
	}
	add("pack-files", "glob", "GET", session+"/files/tar?glob=[&path=.", "")
	add("unpack-files", "plain", "PUT", session+"/files/tar?path=.", strings.Repeat("\x00", 1024))
	add("copy-files", "plain", "POST", session+"/files/copy", object(`"from":"`+s.path+`"`, `"path":"copied"`))
	add("copy-files", "none", "POST", session+"/files/copy", object(`"from_session":"none"`, `"from":"x"`, `"path":"copied"`))
	add("rename-file", "plain", "POST", session+"/files/rename", object(`"path":"copied"`, `"to":"renamed"`))
	add("watch-files", "file", "GET", session+"/files/watch?path=/etc/passwd", "")
	add("make-symlink", "plain", "PUT", session+"/files/symlink?target=f&path="+s.path, "")
	for _, query := range []string{"target=&path=link", "target=%00&path=link", "target=" + strings.Repeat("x/", 3000) + "&path=link", "target=f&path=/usr/x", "target=f&path=.", "target=f&path=no/link"} {
		if s.wrong {
			add("make-symlink", query, "PUT", session+"/files/symlink?"+query, "")
		}
	}
	for _, path := range []string{"/usr/x", "/proc/x", "/", ".", long, "a/b/c"} {
		if !s.wrong {
			break
		}
		add("mkdir", path, "POST", session+"/files/mkdir", object(`"path":"`+path+`"`))
	}
	add("mkdir", "plain", "POST", session+"/files/mkdir", object(`"path":"`+s.path+`"`))

	for _, fields := range []string{"", `"detach":["/none"]`, `"attach":[{"source":"/etc","target":"/workspace/x"}]`, `"cpus":0.001`, `"network":true`, `"memory":"1"`, `"pids":0`, `"idle_ttl":-5`} {
		add("update-session", fields, "PATCH", session, object(fields))
		if !s.wrong {
			break
		}
	}
	for _, signal := range []string{"SIGCONT", "SIGSTOP", "0", "SIGNO", "65"} {
		if !s.wrong && signal != "SIGCONT" {
			break
		}
		add("signal-process", signal, "POST", process+"/signal", `{"signal":"`+signal+`"}`)
	}
	add("pause-session", "", "POST", session+"/pause", "")
	add("pause-session", "with a body", "POST", session+"/pause", "{}")
	add("pause-session", "again", "POST", session+"/pause", "")
	if s.name != "paused" {
		add("resume-session", "", "POST", session+"/resume", "")
	}
	add("stop-process", "", "POST", process+"/stop", "")
	add("stop-process", "again", "POST", process+"/stop", "{}")
	add("signal-process", "stopped", "POST", process+"/signal", `{"signal":"TERM"}`)
	add("remove-process", "", "DELETE", process, "")
	add("remove-process", "again", "DELETE", process, "")
	add("resume-session", "last", "POST", session+"/resume", "")
	add("update-session", "less", "PATCH", session, `{"memory":"4M","pids":1}`)
	add("exec", "after less", "POST", session+"/exec", object(program))
	add("remove-session", "", "DELETE", session, "")
	add("remove-session", "again", "DELETE", session, "")
	return list
}

// fieldOf is the field that a refusal must name.
var fieldOf = map[string]bool{apitypes.CodeInvalid: true, apitypes.CodeDenied: true, apitypes.CodeNoDirectory: true,
	apitypes.CodeProgramNotFound: true, apitypes.CodeProgramNotExecutable: true}

func (d *daemon) try(c *http.Client, s oddState, r apiRequest) {
	d.t.Helper()
	status, answer := d.ask(c, r.method, r.path, r.body)
	var p apitypes.Problem
	if status >= 400 {
		if err := json.Unmarshal(answer, &p); err != nil {
			d.t.Errorf("%s, %s: %d %s", s.name, r.name, status, answer)
		}
	}
	if status >= 500 && p.Code != apitypes.CodeNoSpace {
		d.t.Errorf("%s, %.80s: %d %s: %s", s.name, r.name, status, p.Code, p.Detail)
	}
	// Identifiers in the path have no field.
	if fieldOf[p.Code] && p.Field == "" {
		d.t.Errorf("%s, %.80s: %s names no field: %s", s.name, r.name, p.Code, p.Detail)
	}
	if want, ok := s.want[r.name]; ok && p.Code != want {
		d.t.Errorf("%s, %s: %d %q, want %q: %s", s.name, r.name, status, p.Code, want, p.Detail)
	}
}
