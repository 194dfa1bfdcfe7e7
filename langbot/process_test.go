package langbot

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/langbot/protocol"
)

// info returns the answer of get_managed_process.
func (b *bench) info(session, id string) object {
	b.Helper()
	return b.call("box_get_managed_process", object{"session_id": session, "process_id": id})
}

func TestProcess(t *testing.T) {
	bubble(t, func(b *bench) {
		b.refused(protocol.SessionNotFound, "box_start_managed_process", proc("s", "p", "serve"))
		b.call("box_create_session", specOf("s", nil))
		p := b.call("box_start_managed_process", proc("s", "p", "say", "hello\n"))
		if p["session_id"] != "s" || p["process_id"] != "p" || p["status"] != "running" || p["command"] != "say" || p["cwd"] != "/workspace" ||
			p["attached"] != false || p["exited_at"] != nil || p["exit_code"] != nil || fmt.Sprint(p["args"]) != "[hello\n]" || fmt.Sprint(p["env_keys"]) != "[A B]" {
			t.Errorf("%v", p)
		}
		if p := b.info("s", "p"); p["stderr_preview"] != "hello" {
			t.Errorf("%v", p)
		}
		live := b.host.Only().Processes()
		for _, f := range live {
			m := f.Managed()
			if !slices.Equal(m.Args, []string{"sh", "-lc", `exec "$0" "$@"`, "say", "hello\n"}) || !m.MakeDir || m.Dir != "/workspace" || !m.DropStderr || m.DropOldest ||
				!slices.Equal(m.Env, []string{"A=1", "B=2", "PYTHONUNBUFFERED=1"}) {
				t.Errorf("%+v", m)
			}
		}
		s := b.call("box_get_session", object{"session_id": "s"})
		if _, ok := s["managed_process"]; ok || s["managed_processes"].(object)["p"].(object)["status"] != "running" {
			t.Errorf("%v", s)
		}
		b.call("box_start_managed_process", object{"session_id": "s", "spec": object{"command": "exit", "args": []string{"127"}}})
		synctest.Wait()
		s = b.call("box_get_session", object{"session_id": "s"})
		d := s["managed_process"].(object)
		if d["process_id"] != "default" || d["status"] != "exited" || d["exit_code"] != 127.0 || d["exited_at"] == nil || fmt.Sprint(d["env_keys"]) != "[]" {
			t.Errorf("%v", s)
		}
		if st := b.call("box_status", object{}); st["managed_processes"] != 1.0 {
			t.Errorf("%v", st)
		}
		for _, c := range []object{{"session_id": "s", "process_id": "p"}, {"session_id": "s"}} {
			id, _ := c["process_id"].(string)
			if id == "" {
				id = "default"
			}
			if out := b.call("box_stop_managed_process", c); out["stopped"] != id {
				t.Errorf("%v", out)
			}
			b.refused(protocol.ManagedProcessNotFound, "box_get_managed_process", c)
			b.refused(protocol.ManagedProcessNotFound, "box_stop_managed_process", c)
		}
		if n := len(b.host.Only().Processes()); n != 0 {
			t.Errorf("%d processes are left", n)
		}
		b.refused(protocol.SessionNotFound, "box_get_managed_process", object{"session_id": "x"})
		b.refused(protocol.KeyError, "box_start_managed_process", object{"session_id": "s"})
	})
}

// TestAnyProcessID: an ID can be any string, and clients do not see the manager's form of it.
func TestAnyProcessID(t *testing.T) {
	b := open(t)
	b.call("box_create_session", specOf("s", nil))
	ids := []string{"", "a/b", "a:2fb", "ä", "..", "enc:x", strings.Repeat("x", 200), "server-1"}
	for _, id := range ids {
		b.call("box_start_managed_process", proc("s", id, "serve"))
	}
	if n := len(b.host.Only().Processes()); n != len(ids) {
		t.Errorf("%d processes", n)
	}
	for _, id := range ids {
		if p := b.info("s", id); p["process_id"] != id {
			t.Errorf("%v", p)
		}
	}
}

func TestStopGrace(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", nil))
		b.call("box_start_managed_process", proc("s", "p", "stubborn"))
		began := time.Now()
		b.call("box_stop_managed_process", object{"session_id": "s", "process_id": "p"})
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestReplace: a start stops the process that has its ID, and no other process waits for that.
func TestReplace(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_init", object{"limits": object{"max_managed_processes": 2}})
		b.call("box_create_session", specOf("s", nil))
		b.call("box_start_managed_process", proc("s", "p", "stubborn"))
		b.call("box_start_managed_process", proc("s", "q", "serve"))
		if text := b.refused(protocol.CapacityExceeded, "box_start_managed_process", proc("s", "r", "serve")); text != "Box managed process capacity reached (2)" {
			t.Errorf("%q", text)
		}
		began := time.Now()
		done := make(chan object, 1)
		go func() { done <- b.call("box_start_managed_process", proc("s", "p", "say", "new")) }()
		synctest.Wait()
		b.call("box_start_managed_process", proc("s", "q", "say", "other"))
		if took := time.Since(began); took != 0 {
			t.Errorf("another process took %v", took)
		}
		if p := <-done; p["command"] != "say" || time.Since(began) != 5*time.Second {
			t.Errorf("%v, after %v", p, time.Since(began))
		}
		if n := len(b.host.Only().Processes()); n != 2 {
			t.Errorf("%d processes", n)
		}
		if st := b.call("box_status", object{}); st["managed_processes"] != 2.0 {
			t.Errorf("%v", st)
		}
	})
}

func TestRetention(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_init", object{"limits": object{"completed_process_retention_sec": 60, "max_completed_processes": 2}})
		b.call("box_create_session", specOf("s", object{"persistent": true}))
		gone := func(id string) bool {
			_, err := b.try(context.Background(), &at, "box_get_managed_process", object{"session_id": "s", "process_id": id})
			return err != nil
		}
		for _, id := range []string{"a", "b", "c"} {
			b.call("box_start_managed_process", proc("s", id, "exit", "1"))
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		if !gone("a") || gone("b") || gone("c") {
			t.Error("the oldest of three ended processes is kept, or another one is not")
		}
		time.Sleep(40*time.Second - time.Millisecond) // b ended 60 s ago, less a millisecond
		synctest.Wait()
		if gone("b") {
			t.Error("b is gone before its time")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if !gone("b") || gone("c") {
			t.Error("b is kept, or c is not")
		}
		b.call("box_start_managed_process", proc("s", "c", "serve")) // its time is over
		time.Sleep(time.Hour)
		if p := b.info("s", "c"); p["status"] != "running" {
			t.Errorf("%v", p)
		}
		if n := len(b.host.Only().Processes()); n != 1 {
			t.Errorf("%d processes", n)
		}
	})
}

// TestRetentionOfLongOnes: the memory for ended processes is bounded in bytes, too.
func TestRetentionOfLongOnes(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_init", object{"limits": object{"max_completed_processes": 10000}})
		b.call("box_create_session", specOf("s", object{"persistent": true}))
		long := strings.Repeat("x", 120<<10)
		for i := range 30 {
			b.call("box_start_managed_process", proc("s", fmt.Sprint(i), "exit", "0", long, long))
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		kept := b.call("box_get_session", object{"session_id": "s"})["managed_processes"].(object)
		if n := len(kept); n < 12 || n > 20 || kept["29"] == nil || kept["0"] != nil {
			t.Errorf("%d are kept", n)
		}
		b.refused(protocol.BoxValidation, "box_start_managed_process", proc("s", "p", "exit", "0", long, long, long))
	})
}

// TestPreviewOutlivesOutput: a process can be described after its output was discarded.
func TestPreviewOutlivesOutput(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", nil))
		b.call("box_start_managed_process", proc("s", "first", "say", "last words"))
		for _, f := range b.host.Only().Processes() {
			f.Signal(syscall.SIGTERM)
		}
		synctest.Wait()
		for i := range 20 { // more than the manager keeps
			time.Sleep(time.Millisecond) // the oldest one is forgotten first
			b.call("box_start_managed_process", proc("s", fmt.Sprint(i), "exit", "0"))
			synctest.Wait()
		}
		if p := b.info("s", "first"); p["stderr_preview"] != "last words" || p["exit_code"] != 143.0 || p["status"] != "exited" {
			t.Errorf("%v", p)
		}
		b.call("box_stop_managed_process", object{"session_id": "s", "process_id": "first"})
	})
}

// TestDeleteWhileStarting: no process is left, and the start reports that the session is gone.
func TestDeleteWhileStarting(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", nil))
		wait, entered := make(chan struct{}), make(chan struct{}, 1)
		b.host.SetHook(func(ctx context.Context, op, _ string) error {
			if op == "launch" {
				entered <- struct{}{}
				select {
				case <-wait:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
		started := make(chan error, 1)
		go func() {
			_, err := b.try(context.Background(), &at, "box_start_managed_process", proc("s", "p", "serve"))
			started <- err
		}()
		<-entered
		b.call("box_delete_session", object{"session_id": "s"})
		close(wait)
		if err := <-started; err == nil || !strings.HasPrefix(err.Error(), "BoxSessionNotFoundError: ") {
			t.Errorf("%v", err)
		}
		if ids := b.host.IDs(); len(ids) != 0 || len(b.server.boxes) != 0 {
			t.Errorf("boxes %q, %d sessions", ids, len(b.server.boxes))
		}
	})
}

func TestStartThatFails(t *testing.T) {
	b := open(t)
	b.call("box_create_session", specOf("s", nil))
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "launch" {
			return fmt.Errorf("no more pids")
		}
		return nil
	})
	if text := b.refused(protocol.BoxError, "box_start_managed_process", proc("s", "p", "serve")); !strings.Contains(text, "no more pids") {
		t.Errorf("%q", text)
	}
	b.refused(protocol.ManagedProcessNotFound, "box_get_managed_process", object{"session_id": "s", "process_id": "p"})
	b.host.SetHook(nil)
	b.call("box_start_managed_process", proc("s", "p", "serve"))
}

// TestLookWhileStarting is for the race detector.
func TestLookWhileStarting(t *testing.T) {
	b := open(t)
	b.call("box_create_session", specOf("s", nil))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 20 {
			b.call("box_start_managed_process", proc("s", "p", "exit", "0"))
		}
	}()
	for !isDone(done) {
		b.call("box_get_session", object{"session_id": "s"})
	}
}

func TestRelayRefusals(t *testing.T) {
	b := open(t)
	b.call("box_create_session", specOf("s", nil))
	b.call("box_start_managed_process", proc("s", "ended", "exit", "0"))
	b.server.Current("i", "w")
	<-b.server.boxes[at.Runtime()+"-s"].processes["ended"].live.Done()
	for _, c := range []struct{ session, process, want string }{
		{"x", "p", `{"error":{"code":"BoxSessionNotFoundError","message":"session x not found"}}`},
		{"s", "p", `{"error":{"code":"BoxManagedProcessNotFoundError","message":"managed process p in session s not found"}}`},
		{"s", "ended", `{"error":{"code":"BoxManagedProcessConflictError","message":"managed process ended in session s is not running"}}`},
	} {
		w := httptest.NewRecorder()
		b.server.Relay(w, httptest.NewRequest("GET", "/", nil), at, at.Runtime()+"-"+c.session, c.process)
		if got := strings.TrimSpace(w.Body.String()); w.Code != 400 || got != c.want {
			t.Errorf("%d %s, want %s", w.Code, got, c.want)
		}
	}
}
