package langbot

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestCompared(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	// In the order in which they are compared: each request also differs in all later fields, and the first
	// difference is reported.
	changes := []struct {
		field string
		value any
	}{
		{"image", "other:1"}, {"host_path", b.w.shared}, {"host_path_mode", "ro"},
		{"persistent", true}, {"cpus", 0.5}, {"memory_mb", 256}, {"pids_limit", 64}, {"read_only_rootfs", false}, {"workspace_quota_mb", 8},
	}
	for i, c := range changes {
		change := object{}
		for _, later := range changes[i:] {
			change[later.field] = later.value
		}
		message := b.refused("BoxSessionConflictError", "box_create_session", spec("s", change))
		if !strings.Contains(message, " already exists with "+c.field+"=") {
			t.Errorf("a session that differs in %s and what follows: %q", c.field, message)
		}
		if strings.Contains(message, "ws-") {
			t.Errorf("%q shows the physical id", message)
		}
	}
	message := b.refused("BoxSessionConflictError", "box_create_session", spec("s", object{"mount_path": "/data", "workdir": "/data"}))
	if !strings.Contains(message, " with mount_path=/workspace") {
		t.Errorf("%q", message)
	}
	for _, c := range []object{{"workdir": "/workspace/a"}, {"env": object{"A": "1"}}, {"timeout_sec": 5}, {"skill_name": "x"}, {"cmd": "true"}} {
		b.call("box_create_session", spec("s", c))
	}
	if n := len(b.call("box_get_sessions", object{})["sessions"].([]any)); n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
}

func TestExecStreams(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	s := spec("s", nil)
	r := b.exec(s, "printf '  out \\n\\n'; printf '\\n err\\t ' >&2; exit 7")
	if r.Stdout != "out" || r.Stderr != "err" || *r.Exit != 7 || r.Status != "completed" {
		t.Errorf("%v", r)
	}
	r = b.exec(s, `head -c 1048570 /dev/zero | tr '\0' a; printf 'bbbbbbcccc'; printf 'x\377y\303\251' >&2`)
	want := strings.Repeat("a", 1048570) + "bbbbbb" + "\n... [raw output clipped at 1048576 bytes, 4 bytes discarded]"
	if r.Stdout != want {
		t.Errorf("clipped output has %d bytes and ends in %q", len(r.Stdout), r.Stdout[max(0, len(r.Stdout)-80):])
	}
	if r.Stderr != "x\uFFFDyé" {
		t.Errorf("stderr %q", r.Stderr)
	}
	// Far above every limit of the native door: all of it is read, nothing but the clip is lost.
	r = b.exec(s, "head -c 50000000 /dev/zero; echo end >&2; exit 3")
	if *r.Exit != 3 || r.Stderr != "end" || !strings.HasSuffix(r.Stdout, "\n... [raw output clipped at 1048576 bytes, 48951424 bytes discarded]") {
		t.Errorf("exit %d, stderr %q, stdout ends in %q", *r.Exit, r.Stderr, r.Stdout[max(0, len(r.Stdout)-80):])
	}
}

func TestExecEnds(t *testing.T) {
	b := begin(t).bot("i", "w")
	memory := 64
	if isolation == "gvisor" { // whose kernel counts to it
		memory = 128
	}
	s := spec("s", object{"memory_mb": memory})
	for cmd, want := range map[string]int{
		"kill -9 $$": 137, "kill -TERM $$": 143, "sh -c 'kill -9 $$'; exit $?": 137, "/nonexistent": 127, "exit 255": 255,
		"cat":                  0, // stdin is /dev/null
		"a & b; true":          0,
		"cd /nonexistent; pwd": 0,
	} {
		if r := b.exec(s, cmd); r.Status != "completed" || r.Exit == nil || *r.Exit != want {
			t.Errorf("%q: %v; want exit %d", cmd, r, want)
		}
	}
	if out := b.sh(s, "false; pwd && echo $X$0; id -u; whoami; getent hosts localhost >/dev/null && echo known"); !strings.HasPrefix(out, "/workspace\n") || !strings.HasSuffix(out, "known") {
		t.Errorf("%q", out)
	}
	if out := b.sh(spec("s", object{"memory_mb": memory, "workdir": "/workspace/new dir/'q'"}), "pwd"); out != "/workspace/new dir/'q'" {
		t.Errorf("a missing workdir is made: %q", out)
	}
	b.sh(s, "echo >/workspace/file")
	if r := b.exec(spec("s", object{"memory_mb": memory, "workdir": "/workspace/file/x"}), "true"); r.Status != "completed" || r.Exit == nil || *r.Exit != 1 ||
		!strings.HasPrefix(r.Stderr, "sh: ") || !strings.Contains(r.Stderr, "not a directory") {
		t.Errorf("a workdir in a file: %v", r)
	}
	r := b.exec(s, "head -c 500M /dev/zero | tail | wc -c; exit 9")
	if r.Verdict != "oom" {
		t.Errorf("more memory than the session has: %v", r)
	}
	b.refused("BoxValidationError", "box_exec", spec("s", object{"memory_mb": memory, "cmd": "  "}))
}

func TestEnvironmentIsOfEachExec(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", object{"env": object{"KEPT": "no"}}))
	if out := b.sh(spec("s", object{"env": object{"A": "x y'\"$"}}), `echo "$A-$KEPT-$PYTHONUNBUFFERED"; echo "$PATH"`); out != "x y'\"$--1\n/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" {
		t.Errorf("%q", out)
	}
	if out := b.sh(spec("s", nil), `echo "-$A-"; touch "$HOME/x" && echo home`); out != "--\nhome" {
		t.Errorf("%q", out)
	}
}

// TestConcurrent: commands of one session wait for each other only if they want to.
func TestConcurrent(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	s := spec("s", nil)
	b.sh(s, "mkfifo /workspace/a /workspace/b")
	var wg sync.WaitGroup
	outs := make([]string, 2)
	wg.Go(func() { outs[0] = b.exec(s, "echo 1 > /workspace/a; cat /workspace/b").Stdout })
	wg.Go(func() { outs[1] = b.exec(s, "cat /workspace/a; echo 2 > /workspace/b").Stdout })
	wg.Wait()
	if outs[0] != "2" || outs[1] != "1" {
		t.Errorf("%q", outs)
	}
}

// TestBackground: what a command leaves running goes on in the session.
func TestBackground(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	s := spec("s", nil)
	b.sh(s, "(mkfifo /tmp/f; cat /tmp/f > /tmp/out; mv /tmp/out /tmp/done) >/dev/null 2>&1 & sleep 0.1")
	if out := b.sh(s, "while ! test -p /tmp/f; do sleep 0.01; done; echo hello > /tmp/f; while ! test -f /tmp/done; do sleep 0.01; done; cat /tmp/done"); out != "hello" {
		t.Errorf("%q", out)
	}
}

func TestTimeoutEndsTheSession(t *testing.T) {
	t.Parallel()
	anyKernel(t)
	b := begin(t).bot("i", "w")
	s := spec("s", object{"timeout_sec": 1})
	b.sh(s, "echo kept > /tmp/f; echo kept > /workspace/f")
	r := b.exec(s, "echo before; sleep 60")
	if r.Status != "timed_out" || r.Exit != nil || r.Stdout != "before" || r.Stderr != "Command timed out after 1 seconds." {
		t.Errorf("%v", r)
	}
	b.refused("BoxSessionNotFoundError", "box_get_session", object{"session_id": "s"})
	if out := b.sh(spec("s", object{"timeout_sec": 60}), "ls /tmp /workspace"); strings.Contains(out, "f\n") || strings.HasSuffix(out, "f") {
		t.Errorf("the session is a new one, and has %q", out)
	}
	r = b.exec(s, "echo said >&2; trap '' TERM; sleep 60")
	if r.Status != "timed_out" || r.Stderr != "said" {
		t.Errorf("%v", r)
	}
	// What lies in a shared directory stays.
	s = spec("h", object{"timeout_sec": 1, "host_path": b.w.shared})
	if r := b.exec(s, "echo mine > kept; sleep 60"); r.Status != "timed_out" {
		t.Errorf("%v", r)
	}
	if out := b.sh(spec("h", object{"timeout_sec": 60, "host_path": b.w.shared}), "cat kept"); out != "mine" {
		t.Errorf("%q", out)
	}
}

// TestTimeoutEndsOthers: if the timeout of one command ends the session, the error of another command in it
// says so, instead of reporting an end of its own.
func TestTimeoutEndsOthers(t *testing.T) {
	t.Parallel()
	anyKernel(t)
	b := begin(t).bot("i", "w")
	s := spec("s", nil)
	b.sh(s, "true")
	done := make(chan error, 1)
	go func() {
		_, err := b.tryExec(s, "touch /workspace/up; sleep 100")
		done <- err
	}()
	if r := b.exec(spec("s", object{"timeout_sec": 1}), "while ! test -f /workspace/up; do sleep 0.01; done; sleep 60"); r.Status != "timed_out" {
		t.Errorf("%v", r)
	}
	if err := <-done; err == nil || !strings.HasPrefix(err.Error(), "BoxError: ") {
		t.Errorf("the other command: %v", err)
	}
}

// TestTimeoutEndsTheCommand is the operator's other choice.
func TestTimeoutEndsTheCommand(t *testing.T) {
	t.Parallel()
	anyKernel(t)
	b := begin(t, "--config", configFile(t, "langbot: {timeout_ends: command}\n")).bot("i", "w")
	s := spec("s", object{"timeout_sec": 60})
	b.sh(s, "echo kept > /tmp/f")
	if r := b.exec(spec("s", object{"timeout_sec": 1}), "sleep 60"); r.Status != "timed_out" {
		t.Errorf("%v", r)
	}
	if out := b.sh(s, "cat /tmp/f"); out != "kept" {
		t.Errorf("%q", out)
	}
}

func TestNames(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	got := b.call("box_create_session", spec(" a/b c:d ", nil))
	if got["session_id"] != "a-b-c-d" {
		t.Errorf("%v", got["session_id"])
	}
	for _, name := range []string{"a/b c:d", "a-b-c-d"} {
		if s := b.call("box_get_session", object{"session_id": name}); s["session_id"] != "a-b-c-d" {
			t.Errorf("%v", s)
		}
	}
	for _, name := range []string{strings.Repeat("long", 500), "a..b", "..", ".hidden", "sha256:x", "enc:y", "-_-"} {
		got := b.call("box_create_session", spec(name, nil))
		want := strings.Trim(strings.ReplaceAll(name, ":", "-"), "-")
		if got["session_id"] != want {
			t.Errorf("%.40q is reported as %.40q", name, got["session_id"])
		}
		if d := b.call("box_delete_session", object{"session_id": name}); d["deleted"] != name {
			t.Errorf("%v", d)
		}
	}
	b.refused("ValueError", "box_create_session", spec("///", nil))
	b.refused("KeyError", "box_get_session", object{})
	b.refused("BoxSessionNotFoundError", "box_delete_session", object{"session_id": "never"})
}

func TestCapacity(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_init", object{"limits": object{"max_sessions": 2}})
	other := &bot{b.Client, b.w, Context{"i", "other", 1}}
	b.call("box_create_session", spec("1", nil))
	other.call("box_create_session", spec("1", nil))
	if m := b.refused("BoxCapacityExceededError", "box_create_session", spec("2", nil)); !strings.Contains(m, "Box session capacity reached (2)") {
		t.Errorf("%q", m)
	}
	b.call("box_create_session", spec("1", nil))
	b.call("box_delete_session", object{"session_id": "1"})
	b.call("box_create_session", spec("2", nil))
	for data, text := range map[string]string{
		`{"max_sessions": 5001}`: "box.limits.max_sessions must be between 0 and 5000", `{"max_sessions": true}`: "box.limits.max_sessions must be an integer",
		`{"max_rpc_file_bytes": 0}`: "box.limits.max_rpc_file_bytes must be between 1 and 104857600",
	} {
		if m := b.refused("ValueError", "box_init", object{"limits": raw(data)}); m != "ValueError: "+text {
			t.Errorf("%q", m)
		}
	}
}

// TestExpiry: an unused session ends; one in which a process runs does not.
func TestExpiry(t *testing.T) {
	anyKernel(t)
	b := begin(t, "--config", configFile(t, "profiles: {langbot: {idle_ttl: 3s, isolation: "+isolation+"}}\n")).bot("i", "w")
	b.call("box_create_session", spec("idle", nil))
	b.call("box_create_session", spec("kept", object{"persistent": true}))
	b.call("box_create_session", spec("busy", nil))
	b.call("box_start_managed_process", object{"session_id": "busy", "spec": object{"command": "sleep", "args": []string{"1000"}}})
	gone := func(id string) bool {
		var out object
		err := b.try("box_get_session", object{"session_id": id}, &out)
		return err != nil && strings.HasPrefix(err.Error(), "BoxSessionNotFoundError: ")
	}
	b.w.await("the idle session has ended", func() bool { return gone("idle") })
	if gone("kept") || gone("busy") {
		t.Error("a persistent session, or one with a process, has ended as well")
	}
	b.call("box_stop_managed_process", object{"session_id": "busy"})
	b.w.await("the session has ended that had a process", func() bool { return gone("busy") })
}

// TestParallelCreate: simultaneous requests for one session get the same one.
func TestParallelCreate(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	ids := make([]any, 16)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			var out object
			if err := b.try("box_create_session", spec(fmt.Sprint("s", i%2), nil), &out); err != nil {
				t.Error(err)
				return
			}
			ids[i] = out["backend_session_id"]
		})
	}
	wg.Wait()
	for i := range ids {
		if ids[i] != ids[i%2] || ids[0] == ids[1] {
			t.Errorf("sessions %v", ids)
		}
	}
}

// TestDeleteWhileBusy: a deletion waits for no command, and none outlives it.
func TestDeleteWhileBusy(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	s := spec("s", object{"host_path": b.w.shared})
	done := make(chan error, 1)
	go func() {
		_, err := b.tryExec(s, "echo > up; sleep 1000")
		done <- err
	}()
	b.w.await("the command runs", func() bool { return exists(b.w.shared + "/up") })
	began := time.Now()
	b.call("box_delete_session", object{"session_id": "s"})
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v: LangBot gives up after 30 s", took)
	}
	if err := <-done; err == nil || !strings.HasPrefix(err.Error(), "BoxError: ") {
		t.Errorf("the command: %v", err)
	}
}

func TestShutdownIsOfTheInstance(t *testing.T) {
	anyKernel(t)
	w := begin(t)
	b := w.bot("i", "w")
	b.call("box_create_session", spec("a", nil))
	(&bot{b.Client, w, Context{"i", "v", 3}}).call("box_create_session", spec("b", nil))
	native := w.native("box-of-another")
	b.call("box_shutdown", object{})
	b.refused("BoxSessionNotFoundError", "box_get_session", object{"session_id": "a"})
	if !native() {
		t.Error("a session of the native door is gone")
	}
	b.call("box_create_session", spec("a", nil)) // it goes on serving
}

// TestLongCommand: a command that the kernel cannot pass on is refused with the reason.
func TestLongCommand(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	if out := b.sh(spec("s", nil), "echo "+strings.Repeat("x", 120_000)); len(out) != 120_000 {
		t.Errorf("%d bytes", len(out))
	}
	if m := b.refused("BoxValidationError", "box_exec", spec("s", object{"cmd": "true " + strings.Repeat("x", 140_000)})); !strings.Contains(m, "131071") {
		t.Errorf("%q", m)
	}
}
