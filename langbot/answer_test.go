package langbot

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/langbot/protocol"
)

// hangIn makes an operation of the engine hang until the test releases it, even if it is cancelled.
func (b *bench) hangIn(op string) (release func()) {
	hung := make(chan struct{})
	b.host.SetHook(func(_ context.Context, what, _ string) error {
		if what == op {
			<-hung
		}
		return nil
	})
	return func() {
		b.host.SetHook(nil)
		close(hung)
	}
}

// stuckDisk is an audit log on a disk that does not write some of its entries.
type stuckDisk struct {
	entry func(audit.Entry) bool
	hung  chan struct{}
}

func (d *stuckDisk) Append(e audit.Entry) error {
	if d.entry(e) {
		<-d.hung
	}
	return nil
}

// limit bounds the time of every answer in this test.
const limit = 30 * time.Second

// TestAnsweredInTime: clients get an answer even if the engine hangs; for a session, before LangBot
// gives up after 15 s.
func TestAnsweredInTime(t *testing.T) {
	for name, most := range map[string]time.Duration{"box_create_session": 15 * time.Second, "box_exec": limit} {
		bubble(t, func(b *bench) {
			release := b.hangIn("create")
			began := time.Now()
			if text := b.refused(protocol.BackendUnavailable, name, cmd("s", "true")); !strings.Contains(text, "hangs") {
				t.Errorf("%s: %q", name, text)
			}
			if took := time.Since(began); took >= most {
				t.Errorf("%s took %v", name, took)
			}
			// Another request for the session waits for the same step.
			began = time.Now()
			b.refused(protocol.BackendUnavailable, name, cmd("s", "true"))
			if took := time.Since(began); took >= most {
				t.Errorf("the second %s took %v", name, took)
			}
			if n := b.server.hung.Load(); n < 1 {
				t.Errorf("%d actions hang", n)
			}
			release()
			synctest.Wait()
			if n := b.server.hung.Load(); n != 0 {
				t.Errorf("%d actions hang, and nothing does", n)
			}
			b.call("box_exec", cmd("s", "true"))
		})
	}
}

// TestLateReason: the error of a cancelled action says what the action was waiting for.
func TestLateReason(t *testing.T) {
	bubble(t, func(b *bench) {
		b.host.SetHook(func(ctx context.Context, op, _ string) error {
			if op == "create" {
				<-ctx.Done()
				return errors.New("the step unmount hangs in thread 7")
			}
			return nil
		})
		for _, action := range []string{"box_create_session", "box_exec"} {
			if text := b.refused(protocol.BackendUnavailable, action, cmd("s", "true")); !strings.Contains(text, "hangs in thread 7") {
				t.Errorf("%s: %q", action, text)
			}
		}
		if n := b.server.hung.Load(); n != 0 {
			t.Errorf("%d actions hang", n)
		}
		b.host.SetHook(nil)
		b.call("box_exec", cmd("s", "true"))
	})
}

// TestStartHangs: the launcher does not provide a slot for a command.
func TestStartHangs(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", nil))
		release := b.hangIn("start")
		began := time.Now()
		b.refused(protocol.BackendUnavailable, "box_exec", specOf("s", object{"cmd": "true", "timeout_sec": 300}))
		if took := time.Since(began); took >= limit {
			t.Errorf("took %v", took)
		}
		b.call("box_get_session", object{"session_id": "s"})
		release()
		synctest.Wait()
	})
}

// TestLongCommands: the time in which a command runs does not count.
func TestLongCommands(t *testing.T) {
	bubble(t, func(b *bench) {
		done := make(chan object, 1)
		go func() { done <- b.call("box_exec", specOf("s", object{"cmd": "wait", "timeout_sec": 300})) }()
		time.Sleep(4 * time.Minute)
		select {
		case r := <-done:
			t.Fatalf("answered early: %v", r)
		default:
		}
		if r := <-done; r["status"] != "timed_out" || r["stderr"] != "Command timed out after 300 seconds." {
			t.Errorf("%v", r)
		}
	})
}

// TestEndHangs: the client gets the result of a command even if a later step hangs.
func TestEndHangs(t *testing.T) {
	t.Run("removal", func(t *testing.T) {
		bubble(t, func(b *bench) {
			release := b.hangIn("remove")
			began := time.Now()
			r := b.call("box_exec", specOf("s", object{"cmd": "wait", "timeout_sec": 5}))
			if r["status"] != "timed_out" || r["verdict"] != "timeout" || time.Since(began) >= 5*time.Second+limit {
				t.Errorf("after %v: %v", time.Since(began), r)
			}
			release()
			synctest.Wait()
		})
	})
	t.Run("record", func(t *testing.T) {
		disk := &stuckDisk{func(e audit.Entry) bool { return e.Action == "exec" && e.Decision == audit.Done }, make(chan struct{})}
		synctest.Test(t, func(t *testing.T) {
			disk.hung = make(chan struct{})
			b := open(t)
			b.audit = disk
			b.restart()
			began := time.Now()
			r := b.call("box_exec", specOf("s", object{"cmd": "echo hello", "timeout_sec": 300}))
			if r["stdout"] != "hello" || r["exit_code"] != 0.0 || time.Since(began) >= limit {
				t.Errorf("after %v: %v", time.Since(began), r)
			}
			close(disk.hung)
			b.stop()
		})
	})
	t.Run("decision", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := open(t)
			disk := &stuckDisk{func(e audit.Entry) bool { return e.Action == "create" }, make(chan struct{})}
			b.audit = disk
			b.restart()
			began := time.Now()
			for _, action := range []string{"box_create_session", "box_exec"} {
				b.refused(protocol.BackendUnavailable, action, cmd(action, "true"))
			}
			if took := time.Since(began); took >= 2*limit {
				t.Errorf("both took %v", took)
			}
			close(disk.hung)
			b.stop()
		})
	})
}

// TestHungAreBounded: requests that hang do not pile up.
func TestHungAreBounded(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", nil))
		release := b.hangIn("start")
		errs := make(chan error, maxHung)
		for i := range maxHung {
			go func() {
				_, err := b.try(context.Background(), &at, "box_exec", cmd("s", fmt.Sprint("exit ", i)))
				errs <- err
			}()
		}
		for range maxHung {
			if err := <-errs; err == nil || !strings.HasPrefix(err.Error(), "BoxBackendUnavailableError: ") {
				t.Fatalf("%v", err)
			}
		}
		began := time.Now()
		if text := b.refused(protocol.BackendUnavailable, "box_exec", cmd("s", "true")); !strings.Contains(text, fmt.Sprint(maxHung)) || time.Since(began) != 0 {
			t.Errorf("after %v: %q", time.Since(began), text)
		}
		release()
		synctest.Wait()
		b.call("box_exec", cmd("s", "true"))
	})
}

// TestPanicInTime: a panic reaches the door, which reports it.
func TestPanicInTime(t *testing.T) {
	b := open(t)
	b.call("box_create_session", specOf("s", nil))
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "start" {
			panic("deep below")
		}
		return nil
	})
	defer func() {
		if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "deep below") || !strings.Contains(fmt.Sprint(p), "answer_test.go") {
			t.Errorf("%v", p)
		}
		b.host.SetHook(nil)
	}()
	_, err := b.try(context.Background(), &at, "box_exec", cmd("s", "true"))
	t.Errorf("it went on: %v", err)
}
