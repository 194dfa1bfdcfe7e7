package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
)

func twoSessions() apitypes.SessionList {
	now := time.Now()
	return apitypes.SessionList{Sessions: []apitypes.Session{
		{ID: "s1", State: "running", Memory: 64 << 20, PIDs: 7, CPUs: 0.5, Processes: 1, LastUsedAt: now.Add(-time.Hour)},
		{ID: "s2", State: "failed", Reason: "evil\x1b[2J", Mounts: []apitypes.Mount{{Source: "/a", Target: "/b"}}, LastUsedAt: now.Add(-time.Hour)},
	}}
}

func manyAnswers() map[string]any {
	list := twoSessions()
	return map[string]any{
		"GET /v1/sessions":    list,
		"GET /v1/sessions/s1": list.Sessions[0],
		"GET /v1/sessions/s2": list.Sessions[1],
		"GET /v1/sessions/s1/processes": apitypes.ProcessList{Processes: []apitypes.Process{
			{ID: "p1", Session: "s1", State: "running", Argv: []string{"a", "b"}}, {ID: "p2", Session: "s1", State: "exited", ExitCode: number(3)},
			{ID: "p3", Session: "s1", State: "failed"}, {ID: "p4", Session: "s1", State: "stopping"}}},
		"GET /v1/sessions/s2/processes":    apitypes.ProcessList{},
		"GET /v1/sessions/s1/processes/p2": apitypes.Process{ID: "p2", Session: "s1", State: "exited", ExitCode: number(3)},
		"GET /v1/sessions/s1/processes/p3": apitypes.Process{ID: "p3", Session: "s1", State: "running"}, // started again meanwhile
		"GET /v1/sessions/s1/usage":        apitypes.Usage{PIDs: new(int64)},
		"GET /v1/status":                   apitypes.Status{Available: true, Version: "9"},
	}
}

func TestFormats(t *testing.T) {
	d := newFakeDaemon(t, answers(t, manyAnswers()))
	for _, c := range []struct {
		args   []string
		stdout string
	}{
		{[]string{"sessions", "ls", "-q"}, "s1\ns2\n"},
		{[]string{"sessions", "ls", "--format", `{{.id}}\t{{.memory}}`}, "s1\t67108864\ns2\t0\n"},
		{[]string{"sessions", "ls", "--format", `{{if eq .pids 7}}{{.id}} {{.cpus}}{{end}}`}, "s1 0.5\n\n"},
		{[]string{"sessions", "ls", "--format", `{{.reason}}{{.expires_at}}.`}, ".\nevil\x1b[2J.\n"}, // unchanged without a terminal
		{[]string{"sessions", "show", "s2", "--format", `{{range .mounts}}{{.source}}{{end}} {{json .mounts}}`}, `/a [{"read_only":false,"source":"/a","target":"/b"}]` + "\n"},
		{[]string{"ps", "-q"}, "s1 p1\ns1 p4\n"},
		{[]string{"ps", "-aq", "s1"}, "p1\np2\np3\np4\n"},
		{[]string{"ps", "-a", "--format", "{{.id}}={{.exit_code}} {{join .argv \",\"}}"}, "p1= a,b\np2=3 \np3= \np4= \n"},
		{[]string{"inspect", "s1", "p2", "--format", "{{upper .state}}"}, "EXITED\n"},
		{[]string{"status", "--format", "{{.version}}"}, "9\n"},
		{[]string{"top", "--once", "--format", "{{.session}} {{.limits.pids}}"}, "s1 7\ns2 0\n"},
	} {
		status, v := d.call(c.args...)
		if status != 0 || v.stdout.String() != c.stdout || v.stderr.Len() > 0 {
			t.Errorf("boxd %q: status %d, %q, %q, want %q", c.args, status, v.stdout.String(), v.stderr.String(), c.stdout)
		}
	}
	status, v := d.call("inspect", "s1")
	if status != 0 || !strings.HasPrefix(v.stdout.String(), "{\n  \"id\": \"s1\",\n") {
		t.Errorf("inspect: status %d, %q", status, v.stdout.String())
	}
}

func TestFormatRefusals(t *testing.T) {
	d := newFakeDaemon(t, answers(t, manyAnswers()))
	for _, c := range []struct {
		args   []string
		stderr string
	}{
		{[]string{"sessions", "ls", "--format", "{{.idd}}"}, `no entry for key "idd"`},
		{[]string{"ps", "--format", "{{.id"}, "--format \"{{.id\": --format:1: unclosed action"},
		{[]string{"ps", "--format", ""}, "must be a template"},
		{[]string{"ps", "--format", "x", "--json"}, "cannot be used together with --json"},
		{[]string{"ps", "-q", "--json"}, "cannot be used together"},
		{[]string{"inspect"}, "SESSION is missing: boxd inspect SESSION [PROCESS]"},
		{[]string{"inspect", "a", "b", "c"}, `"c": is one argument too many: boxd inspect SESSION [PROCESS]`},
		{[]string{"kill", "s"}, "PROCESS is missing: boxd kill SESSION PROCESS"},
		{[]string{"kill", "s", "p", "-s", ""}, `--signal "": must be`},
		{[]string{"run", "--rm=false", "--", "true"}, "--rm false: must be true"},
		{[]string{"exec", "-t", "s", "--timeout", "1s", "--", "true"}, "--timeout with -t: cannot be used together"},
		{[]string{"exec", "-t", "s", "--outputs-to", "x", "--", "true"}, "--outputs-to with -t: cannot be used together"},
		{[]string{"exec", "-it", "s", "--", "true"}, "-t with -i: needs a terminal on stdin"},
		{[]string{"shell", "s"}, "stdin is no terminal"},
		{[]string{"shell", ".."}, `SESSION "..": must be 1 to 128`},
		{[]string{"prune", "--idle", "0"}, "--idle"},
		{[]string{"prune", "x"}, `"x": is one argument too many: boxd prune`},
	} {
		status, v := d.call(c.args...)
		line := v.stderr.String()
		if status != 125 || strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "boxd: ") || !strings.Contains(line, c.stderr) {
			t.Errorf("boxd %q: status %d, stderr %q, want %q", c.args, status, line, c.stderr)
		}
	}
}

// Only ended processes and idle sessions are removed, and only if they still are.
func TestPrune(t *testing.T) {
	table := answers(t, manyAnswers())
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		if strings.HasPrefix(r.what, "DELETE ") {
			w.WriteHeader(204)
			return
		}
		table(r, w)
	})
	deleted := func() (list []string) {
		for _, r := range d.requests {
			if strings.HasPrefix(r.what, "DELETE ") {
				list = append(list, r.what)
			}
		}
		d.requests = nil
		return list
	}
	for _, c := range []struct{ args, stdout, deleted string }{
		{"prune --dry-run --idle 1m", "would remove process s1 p2\nwould remove process s1 p3\nwould remove session s2\n", "[]"},
		{"prune", "removed process s1 p2\n", "[DELETE /v1/sessions/s1/processes/p2]"},
		{"prune --idle 2h", "removed process s1 p2\n", "[DELETE /v1/sessions/s1/processes/p2]"},
		{"prune --idle 1m --json", `{"dry_run":false,"failed":0,"removed":[{"session":"s1","process":"p2"},{"session":"s2"}]}` + "\n",
			"[DELETE /v1/sessions/s1/processes/p2 DELETE /v1/sessions/s2]"},
	} {
		status, v := d.call(strings.Split(c.args, " ")...)
		if got := fmt.Sprint(deleted()); status != 0 || v.stdout.String() != c.stdout || got != c.deleted {
			t.Errorf("boxd %s: status %d, %q, %q, deleted %s", c.args, status, v.stdout.String(), v.stderr.String(), got)
		}
	}
}

// If one cannot be removed, that is reported, and the others are removed.
func TestPruneFails(t *testing.T) {
	table := answers(t, manyAnswers())
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		switch r.what {
		case "DELETE /v1/sessions/s1/processes/p2":
			refuse(w, 503, "unavailable", "busy")
		case "DELETE /v1/sessions/s2":
			w.WriteHeader(204)
		default:
			table(r, w)
		}
	})
	status, v := d.call("prune", "--idle", "1m")
	if status != 125 || v.stdout.String() != "removed session s2\n" || !strings.Contains(v.stderr.String(), "process s1 p2: busy") {
		t.Errorf("status %d, %q, %q", status, v.stdout.String(), v.stderr.String())
	}
}

func TestKill(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) { w.WriteHeader(204) })
	for _, args := range []string{"kill s p", "kill -s HUP s p"} {
		if status, v := d.call(strings.Split(args, " ")...); status != 0 {
			t.Errorf("boxd %s: status %d, %q", args, status, v.stderr.String())
		}
	}
	d.wantRequests(`POST /v1/sessions/s/processes/p/signal {"signal":"SIGKILL"}`, `POST /v1/sessions/s/processes/p/signal {"signal":"HUP"}`)
}

// Columns are aligned and coloured on a terminal only, without colours if the user or the terminal
// wants none.
func TestTableAtTerminal(t *testing.T) {
	d := newFakeDaemon(t, answers(t, manyAnswers()))
	for _, c := range []struct {
		terminal             bool
		noColour, kind, want string
	}{
		{true, "", "xterm", "\x1b[1mSESSION\x1b[0m  "},
		{true, "", "xterm", "s2       -       \x1b[31mfailed\x1b[0m   -        "},
		{true, "1", "xterm", "s2       -       failed   -        "},
		{true, "", "dumb", "s2       -       failed   -        "},
		{true, "", "", "s2       -       failed   -        "},
		{false, "", "xterm", "s2\t-\tfailed\t-\t"},
	} {
		v := newInvocation(t)
		lookup := v.LookupEnv
		v.LookupEnv = func(key string) (string, bool) {
			switch key {
			case "NO_COLOR":
				return c.noColour, c.noColour != ""
			case "TERM":
				return c.kind, c.kind != ""
			}
			return lookup(key)
		}
		var got string
		if c.terminal {
			keyboard, tty := openPTY(t)
			v.Stdout = tty
			if status := d.callWith(v, "sessions", "ls"); status != 0 {
				t.Fatalf("status %d, %q", status, v.stderr.String())
			}
			got = readPTY(t, keyboard, "\n", 3)
		} else {
			d.callWith(v, "sessions", "ls")
			got = v.stdout.String()
		}
		if !strings.Contains(got, c.want) || strings.Contains(got, "\x1b[2J") {
			t.Errorf("NO_COLOR=%q TERM=%q terminal %v: %q, want %q", c.noColour, c.kind, c.terminal, got, c.want)
		}
	}
	// Text from a box does not move the cursor.
	keyboard, tty := openPTY(t)
	v := newInvocation(t)
	v.Stdout = tty
	d.callWith(v, "sessions", "show", "s2", "--format", "{{.reason}}!")
	if got := readPTY(t, keyboard, "!", 1); !strings.HasPrefix(got, "evil?[2J!") {
		t.Errorf("--format at a terminal: %q", got)
	}
}

// readPTY reads until the output contains mark n times.
func readPTY(t *testing.T, f *os.File, mark string, n int) string {
	t.Helper()
	var text []byte
	buf := make([]byte, 4096)
	for strings.Count(string(text), mark) < n {
		m, err := f.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, text)
		}
		text = append(text, buf[:m]...)
	}
	return string(text)
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := &progress{out: screen{Writer: &out}, what: "removing", total: 4, format: plainCount, quit: make(chan struct{}), closed: make(chan struct{})}
	go p.run(nil)
	p.add(1)
	p.draw()
	p.pause(func() { out.WriteString("a line\n") })
	p.end()
	const bar = "\rremoving [######------------------] 1 of 4\x1b[K"
	if text := out.String(); text != bar+"\r\x1b[Ka line\n" {
		t.Errorf("%q", text)
	}
	for done, want := range map[int64]string{0: "removing [------------------------] 0 of 4", 3: "removing [##################------] 3 of 4", 9: "removing [########################] 4 of 4"} {
		p.done = done
		if got := p.lineLocked(); got != want {
			t.Errorf("%d done: %q, want %q", done, got, want)
		}
	}
	p.done, p.total = 9, 0
	if got := p.lineLocked(); got != "removing: 9" {
		t.Errorf("%q", got)
	}
	// Without a terminal there is no bar, however long it takes.
	v := newInvocation(t)
	quiet := v.newProgress("x", 1, plainCount)
	quiet.end()
	if v.stderr.Len() > 0 {
		t.Errorf("%q", v.stderr.String())
	}
}
