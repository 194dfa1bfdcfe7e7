package langbot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/langbot/protocol"
)

func TestExecResults(t *testing.T) {
	b := open(t)
	for _, c := range []struct {
		cmd, stdout, stderr, verdict string
		code                         float64
	}{
		{"true", "", "", "exited", 0},
		{"exit 255", "", "", "exited", 255},
		{"kill 9", "", "", "signaled", 137},
		{"kill 15", "", "", "signaled", 143},
		{"oom", "", "", "oom", 137},
		{"echo \x1c\u3000 \n a\tb \n\u0085", "a\tb", "", "exited", 0},
		{"err \u2028 said ", "", "said", "exited", 1},
		{"hex 20c3a92078ff79e28278f0", "é x\uFFFDy\uFFFDx\uFFFD", "", "exited", 0},
	} {
		r := b.call("box_exec", cmd("s", c.cmd))
		if r["stdout"] != c.stdout || r["stderr"] != c.stderr || r["exit_code"] != c.code || r["status"] != "completed" || r["verdict"] != c.verdict {
			t.Errorf("%q: %v", c.cmd, r)
		}
	}
	if r := b.call("box_exec", cmd("s", "oom")); r["limit"] != "64 MiB" {
		t.Errorf("%v", r)
	}
	b.refused(protocol.BoxValidation, "box_exec", cmd("s", " \t"))
}

func TestExecClips(t *testing.T) {
	b := open(t)
	r := b.call("box_exec", cmd("s", "fill 20000000")) // more than the limit of other doors
	out := r["stdout"].(string)
	if want := "\n... [raw output clipped at 1048576 bytes, 18951424 bytes discarded]"; len(out) != clipAt+len(want) || !strings.HasSuffix(out, want) {
		t.Errorf("%d bytes, ending in %q", len(out), out[max(0, len(out)-100):])
	}
}

func TestExecCommand(t *testing.T) {
	b := open(t)
	b.call("box_create_session", specOf("s", object{"env": object{"OF_SESSION": "1"}}))
	b.call("box_exec", specOf("s", object{"cmd": "true", "workdir": "/workspace/a b", "env": object{"Z": "1", "A": "x=y"}, "timeout_sec": 7}))
	box := b.host.Only()
	c := box.Last()
	if !slices.Equal(c.Args, []string{"sh", "-lc", "true"}) || c.Dir != "/workspace/a b" || !c.MakeDir || !c.KeepBackground || c.Stdin != nil ||
		c.Timeout != 7*time.Second || c.OutputLimit != 0 || !slices.Equal(c.Env, []string{"A=x=y", "PYTHONUNBUFFERED=1", "Z=1"}) {
		t.Errorf("%+v", c)
	}
	b.call("box_exec", specOf("s", object{"cmd": "true", "env": object{"PYTHONUNBUFFERED": ""}, "timeout_sec": 1 << 60}))
	if c := box.Last(); !slices.Equal(c.Env, []string{"PYTHONUNBUFFERED="}) || c.Timeout != time.Hour {
		t.Errorf("%q, %v", c.Env, c.Timeout)
	}
	r := b.call("box_exec", specOf("s", object{"cmd": "true", "workdir": "/file/x"}))
	if r["exit_code"] != 1.0 || r["stderr"] != `sh: making "/file/x": not a directory` || r["status"] != "completed" {
		t.Errorf("%v", r)
	}
}

func TestTimeoutEndsTheSession(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", nil))
		other := make(chan error, 1)
		go func() {
			_, err := b.try(context.Background(), &at, "box_exec", specOf("s", object{"cmd": "wait", "timeout_sec": 100}))
			other <- err
		}()
		synctest.Wait()
		r := b.call("box_exec", specOf("s", object{"cmd": "wait", "timeout_sec": 5}))
		if r["status"] != "timed_out" || r["exit_code"] != nil || r["stderr"] != "Command timed out after 5 seconds." || r["verdict"] != "timeout" {
			t.Errorf("%v", r)
		}
		if err := <-other; err == nil || !strings.HasPrefix(err.Error(), "BoxError: session s ended while the command ran: another command in it took longer") {
			t.Errorf("the other command: %v", err)
		}
		b.refused(protocol.SessionNotFound, "box_get_session", object{"session_id": "s"})
		if ids := b.host.IDs(); len(ids) != 0 {
			t.Errorf("boxes %q", ids)
		}
		b.call("box_exec", cmd("s", "true"))
		if len(b.host.Made()) != 2 {
			t.Errorf("%d boxes were made, want 2", len(b.host.Made()))
		}
	})
}

func TestTimeoutEndsTheCommand(t *testing.T) {
	bubble(t, func(b *bench) {
		r := b.call("box_exec", specOf("s", object{"cmd": "wait", "timeout_sec": 5}))
		if r["status"] != "timed_out" {
			t.Errorf("%v", r)
		}
		b.call("box_get_session", object{"session_id": "s"})
	}, func(o *Options) { o.TimeoutEndsCommand = true })
}

// TestExecIsGivenUp: when a connection is lost, its commands end, and nothing else does.
func TestExecIsGivenUp(t *testing.T) {
	bubble(t, func(b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			_, err := b.try(ctx, &at, "box_exec", cmd("s", "wait"))
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-done; err == nil {
			t.Error("a command that was given up has a result")
		}
		if n := b.host.Only().Commands(); n != 0 {
			t.Errorf("%d commands run", n)
		}
		b.call("box_get_session", object{"session_id": "s"})
	})
}

// TestConcurrentExecs: commands of one session do not wait for each other.
func TestConcurrentExecs(t *testing.T) {
	bubble(t, func(b *bench) {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { b.call("box_exec", specOf("s", object{"cmd": "wait", "timeout_sec": 20})) })
		}
		began := time.Now()
		wg.Wait()
		if took := time.Since(began); took > 25*time.Second {
			t.Errorf("three commands took %v", took)
		}
		if len(b.host.Made()) != 1 {
			t.Errorf("%d boxes", len(b.host.Made()))
		}
	}, func(o *Options) { o.TimeoutEndsCommand = true })
}

// TestLostBox: a lost box is replaced silently; a command that was running in it has no result.
func TestLostBox(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", nil))
		b.host.Only().Die()
		synctest.Wait()
		b.call("box_exec", cmd("s", "true"))
		_, err := b.try(context.Background(), &at, "box_exec", cmd("s", "die"))
		if err == nil || !strings.HasPrefix(err.Error(), "BoxError: the sandbox of session s was lost") {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		if s := b.call("box_create_session", specOf("s", nil)); s["backend_session_id"] != b.host.Only().ID() {
			t.Errorf("%v", s)
		}
		b.call("box_exec", cmd("s", "true"))
		if len(b.host.Made()) != 3 {
			t.Errorf("%d boxes were made, want 3", len(b.host.Made()))
		}
	})
}

func TestErrorClasses(t *testing.T) {
	b := open(t)
	for _, c := range []struct {
		err   error
		class protocol.Class
	}{
		{fmt.Errorf("asking: %w", engine.ErrNoLauncher), protocol.BackendUnavailable},
		{fmt.Errorf("memory: %w", engine.ErrUnenforceable), protocol.BoxValidation},
		{&engine.FieldError{Field: "f", Value: "v", Rule: "r"}, protocol.BoxValidation},
		{errors.New("two\n  lines"), protocol.BoxError},
	} {
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "create" {
				return c.err
			}
			return nil
		})
		text := b.refused(c.class, "box_exec", cmd("s", "true"))
		if strings.Contains(text, "\n") || c.class == protocol.BoxError && !strings.HasSuffix(text, "two lines") {
			t.Errorf("%q", text)
		}
		if n := len(b.server.boxes); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	}
}
