package langbot

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// info is a BoxManagedProcessInfo.
type info struct {
	Session  string   `json:"session_id"`
	ID       string   `json:"process_id"`
	Status   string   `json:"status"`
	Command  string   `json:"command"`
	Args     []string `json:"args"`
	Cwd      string   `json:"cwd"`
	EnvKeys  []string `json:"env_keys"`
	Attached bool     `json:"attached"`
	Started  string   `json:"started_at"`
	Exited   *string  `json:"exited_at"`
	Exit     *int     `json:"exit_code"`
	Preview  string   `json:"stderr_preview"`
}

// launch starts a managed process.
func (b *bot) launch(session, id, command string, args ...string) info {
	b.w.t.Helper()
	return b.launchSpec(session, object{"process_id": id, "command": command, "args": append([]string{}, args...)})
}

func (b *bot) launchSpec(session string, s object) (i info) {
	b.w.t.Helper()
	if err := b.try("box_start_managed_process", object{"session_id": session, "spec": s}, &i); err != nil {
		b.w.t.Fatalf("starting %s: %v", show(s), err)
	}
	return i
}

func (b *bot) process(session, id string) (i info) {
	b.w.t.Helper()
	if err := b.try("box_get_managed_process", object{"session_id": session, "process_id": id}, &i); err != nil {
		b.w.t.Fatal(err)
	}
	return i
}

// ended waits for the end of a process.
func (b *bot) ended(session, id string) (i info) {
	b.w.t.Helper()
	b.w.await("process "+id+" has ended", func() bool {
		i = b.process(session, id)
		return i.Status == "exited"
	})
	return i
}

func TestProcessInfo(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	i := b.launchSpec("s", object{"command": "cat", "args": []string{"-u", "a b", "$HOME", "'"}, "env": object{"Z": "1", "A": "secret"}, "cwd": "/workspace/new"})
	if i.ID != "default" || i.Status != "running" || i.Command != "cat" || fmt.Sprint(i.Args) != "[-u a b $HOME ']" || i.Cwd != "/workspace/new" || fmt.Sprint(i.EnvKeys) != "[A Z]" || i.Exit != nil || i.Exited != nil {
		t.Errorf("%+v", i)
	}
	got := b.call("box_get_session", object{"session_id": "s"})
	all, _ := got["managed_processes"].(object)
	if one, _ := got["managed_process"].(object); len(all) != 1 || one["process_id"] != "default" || one["session_id"] != "s" {
		t.Errorf("%s", show(got))
	}
	if n := b.call("box_status", object{})["managed_processes"]; n != 0.0 && n != 1.0 {
		t.Errorf("%v managed processes", n)
	}
	i = b.ended("s", "default") // cat finds no such files
	if *i.Exit != 1 || i.Exited == nil || !strings.Contains(i.Preview, "a b") || !strings.Contains(i.Preview, "$HOME") {
		t.Errorf("%+v", i)
	}
}

// TestMCPSession: the session that LangBot makes for MCP servers asks for a network, and gets
// one by the documented set-up, which leads to no private address.
func TestMCPSession(t *testing.T) {
	w := begin(t)
	b := w.bot("i", "w")
	asked := spec("mcp-shared", object{"network": "on", "persistent": true, "read_only_rootfs": false, "memory_mb": 1536, "host_path": w.shared + "/default/tenants/x"})
	var s object
	err := b.try("box_create_session", asked, &s)
	if err != nil && strings.Contains(err.Error(), "cannot be id-mapped") {
		testutil.RequireFeature(t, "id-mapped root file system", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s["network"] != "on" || s["warnings"] != nil {
		t.Errorf("%s", show(s))
	}
	b.launch("mcp-shared", "server", "sh", "-c", "while read -r line; do echo \"$line\"; done")
	if r := b.exec(asked, "cat /proc/net/dev | tail -n +3"); strings.Count(r.Stdout, ":") != 1 || !strings.Contains(r.Stdout, "lo:") {
		t.Errorf("interfaces: %v", r)
	}
	list, err := w.every.Sessions(t.Context())
	if err != nil || len(list) != 1 || !list[0].Network || len(list[0].Warnings) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if r := b.exec(asked, "curl -sS -m 20 http://169.254.169.254/latest/ http://10.0.0.1/"); strings.Count(r.Stdout, "is not allowed") != 2 {
		t.Errorf("private addresses: %v", r)
	}
}

// TestMCPNetwork: an MCP server over stdio, in a session with network "on", reaches what the rules of
// LangBot's profile allow, and nothing else. With "off", or langbot.network_on offline, it reaches
// nothing.
func TestMCPNetwork(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s for you\n", r.URL.Path[1:]) })}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	at := l.Addr().String()
	// A tool server: a request is a line, and so is the answer.
	const tool = `import sys, urllib.request
for line in sys.stdin:
    try:
        print(urllib.request.urlopen(line.strip(), timeout=20).read().decode().strip(), flush=True)
    except Exception as e:
        print("error:", e, flush=True)
`
	for _, on := range []string{"extended", "offline"} {
		w := begin(t, "--config", configFile(t, fmt.Sprintf("langbot: {network_on: %s}\nprofiles: {langbot: {isolation: %s, network_rules: {public: false, allow: [%q]}}}\n", on, isolation, at)))
		b := w.bot("i", "w")
		for session, want := range map[string]bool{"on": on == "extended", "off": false} {
			asked := spec(session, object{"network": session})
			b.call("box_create_session", asked)
			b.launch(session, "tool", "python3", "-c", tool)
			relay := b.attach(session, "tool")
			say(t, relay, "http://"+at+"/weather")
			if got := next(t, relay); strings.Contains(got, "weather for you") != want {
				t.Errorf("%s: session with network %s: %q", on, session, got)
			}
			say(t, relay, "http://10.0.0.1/")
			if got := next(t, relay); !strings.Contains(got, "error") || want && !strings.Contains(got, "403") {
				t.Errorf("%s: session with network %s, private address: %q", on, session, got)
			}
			if r := b.exec(asked, "curl -sS http://"+at+"/news"); strings.Contains(r.Stdout, "news for you") != want {
				t.Errorf("%s: session with network %s: %v", on, session, r)
			}
		}
	}
}

func TestProcessEnds(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	cases := []struct {
		id, command string
		args        []string
		exit        int
		stderr      string
	}{
		{"missing", "no-such-program", nil, 127, "no-such-program"},
		{"code", "sh", []string{"-c", "echo oops >&2; exit 3"}, 3, "oops"},
		{"killed", "sh", []string{"-c", "kill -9 $$"}, 137, ""},
		{"terminated", "sh", []string{"-c", "kill $$"}, 143, ""},
		{"odd id/with everything é", "true", nil, 0, ""},
	}
	for _, c := range cases {
		b.launch("s", c.id, c.command, c.args...)
	}
	for _, c := range cases {
		if i := b.ended("s", c.id); i.Exit == nil || *i.Exit != c.exit || !strings.Contains(i.Preview, c.stderr) || i.ID != c.id {
			t.Errorf("%s: %+v", c.id, i)
		}
	}
	b.refused("BoxManagedProcessNotFoundError", "box_get_managed_process", object{"session_id": "s", "process_id": "never"})
	b.refused("BoxSessionNotFoundError", "box_get_managed_process", object{"session_id": "never"})
	b.refused("BoxSessionNotFoundError", "box_start_managed_process", object{"session_id": "never", "spec": object{"command": "true"}})
	b.refused("KeyError", "box_start_managed_process", object{"session_id": "s"})
	b.refused("BoxValidationError", "box_start_managed_process", object{"session_id": "s", "spec": object{"command": " "}})
}

// TestPreview: stderr_preview is always the last 4000 characters, however they were written, and no process
// waits for a reader of its stderr.
func TestPreview(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	b.launch("s", "flood", "sh", "-c", `head -c 9000000 /dev/zero | tr '\0' x >&2; i=0; while [ $i -lt 2000 ]; do printf 'é%s' "$i" >&2; i=$((i+1)); done; printf end >&2`)
	i := b.ended("s", "flood")
	runes := []rune(i.Preview)
	if len(runes) != 4000 || !strings.HasSuffix(i.Preview, "é1998é1999end") || strings.Contains(i.Preview, "\uFFFD") {
		t.Errorf("%d characters: %q … %q", len(runes), string(runes[:min(20, len(runes))]), string(runes[max(0, len(runes)-20):]))
	}
}

func TestProcessStop(t *testing.T) {
	t.Parallel()
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	// Its stdin is closed first: a filter ends by itself.
	b.launch("s", "filter", "sh", "-c", "trap '' TERM; echo > /workspace/up3; cat; echo eof > /workspace/filter")
	b.launch("s", "polite", "sh", "-c", `trap 'echo term > /workspace/polite; exit 0' TERM; echo > /workspace/up; `+testutil.SignalLoop)
	b.launch("s", "stubborn", "sh", "-c", `trap '' TERM; echo > /workspace/up2; while :; do sleep 0.05; done`)
	b.sh(spec("s", nil), "while ! test -f /workspace/up2 -a -f /workspace/up -a -f /workspace/up3; do sleep 0.01; done")
	for _, id := range []string{"filter", "polite"} {
		began := time.Now()
		if out := b.call("box_stop_managed_process", object{"session_id": "s", "process_id": id}); out["stopped"] != id {
			t.Errorf("%v", out)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("stopping %s took %v: it was killed after its grace", id, took)
		}
		b.refused("BoxManagedProcessNotFoundError", "box_get_managed_process", object{"session_id": "s", "process_id": id})
	}
	if out := b.sh(spec("s", nil), "cat /workspace/filter /workspace/polite"); out != "eof\nterm" {
		t.Errorf("%q", out)
	}
	b.call("box_stop_managed_process", object{"session_id": "s", "process_id": "stubborn"})
	if out := b.sh(spec("s", nil), "grep -l stubborn /proc/[0-9]*/cmdline 2>/dev/null | grep -v self; ps ax 2>/dev/null | grep -c '[t]rap' || true"); strings.HasPrefix(out, "1") {
		t.Errorf("it lives: %q", out)
	}
	b.refused("BoxManagedProcessNotFoundError", "box_stop_managed_process", object{"session_id": "s", "process_id": "stubborn"})
}

// TestProcessReplaced: a second start under one id stops the first.
func TestProcessReplaced(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	b.launch("s", "p", "sh", "-c", "echo first >&2; exec sleep 1000")
	second := b.launch("s", "p", "sh", "-c", "echo second >&2; exec sleep 1000")
	if second.Status != "running" {
		t.Errorf("%+v", second)
	}
	b.w.await("the second has spoken", func() bool { return b.process("s", "p").Preview == "second" })
	var out string
	b.w.await("its shell has become sleep", func() bool {
		out = b.sh(spec("s", nil), "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^1000$' || true")
		return out != "0"
	})
	if out != "1" {
		t.Errorf("%s sleeping processes, want 1", out)
	}
	if n := b.call("box_status", object{})["managed_processes"]; n != 1.0 {
		t.Errorf("status: %v", n)
	}
}

func TestProcessCapacity(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_init", object{"limits": object{"max_managed_processes": 2, "max_completed_processes": 1}})
	b.call("box_create_session", spec("s", nil))
	b.launch("s", "1", "sleep", "1000")
	b.launch("s", "2", "sleep", "1000")
	b.refused("BoxCapacityExceededError", "box_start_managed_process", object{"session_id": "s", "spec": object{"process_id": "3", "command": "true"}})
	b.launch("s", "2", "true") // replaces one
	b.ended("s", "2")
	b.launch("s", "3", "false")
	b.ended("s", "3")
	b.w.await("only one that has ended is kept", func() bool {
		var i info
		err := b.try("box_get_managed_process", object{"session_id": "s", "process_id": "2"}, &i)
		return err != nil && strings.HasPrefix(err.Error(), "BoxManagedProcessNotFoundError: ")
	})
	b.ended("s", "3")
}

// TestProcessMemory: a process may have a limit of its own.
func TestProcessMemory(t *testing.T) {
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", object{"memory_mb": 256}))
	oom := b.w.watch("oom")
	b.launchSpec("s", object{"process_id": "small", "command": "sh", "args": []string{"-c", "head -c 150M /dev/zero | tail >/dev/null; exit 5"}, "memory_mb": 64})
	b.launchSpec("s", object{"process_id": "big", "command": "sh", "args": []string{"-c", "head -c 100M /dev/zero | tail -c 1 >/dev/null; exit 6"}})
	if i := b.ended("s", "small"); *i.Exit == 0 {
		t.Errorf("%+v", i)
	}
	within(t, "an event tells that the process ran out of memory", oom)
	if i := b.ended("s", "big"); *i.Exit != 6 {
		t.Errorf("%+v", i)
	}
}
