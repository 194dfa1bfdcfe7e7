package langbot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/testutil"
)

// again kills the daemon and starts it anew.
func (w *world) again() {
	w.t.Helper()
	if err := w.Kill(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		w.t.Fatal(err)
	}
}

// TestRestart: sessions and processes outlive the daemon, and a relay goes on where it
// was, with every line once.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"killed", "stopped"} {
		t.Run(how, func(t *testing.T) {
			if how == "stopped" {
				anyKernel(t)
			}
			w := begin(t)
			if how == "stopped" {
				w.Args = w.Args[1:] // without --stop-sessions
				defer func() { w.Args = append([]string{"--stop-sessions"}, w.Args...); w.again() }()
				w.again()
			}
			b := w.bot("i", "w")
			before := b.call("box_create_session", spec("s/1", object{"persistent": true, "host_path": w.shared, "extra_mounts": []object{}}))
			s := spec("s/1", object{"persistent": true, "host_path": w.shared})
			b.sh(s, "echo kept > /tmp/f")
			b.launchSpec("s/1", object{"process_id": "p q", "command": "sh", "args": []string{"-c", `echo err >&2; while read -r l; do seq -f "$l %g" 1 1000; while ! test -f /workspace/go; do sleep 0.01; done; seq -f "later %g" 1 1000; done`}, "env": object{"K": "1"}})
			ws := b.attach("s-1", "p%20q")
			say(t, ws, "a")
			for i := range 1000 {
				if got, want := next(t, ws), fmt.Sprintf("a %d\n", i+1); got != want {
					t.Fatalf("%q, want %q", got, want)
				}
			}
			b.w.await("stderr is there", func() bool { return b.process("s/1", "p q").Preview == "err" })
			info := b.process("s/1", "p q")
			ws.Close()
			b.w.await("the relay has noticed", func() bool { return !b.process("s/1", "p q").Attached })
			time.Sleep(50 * time.Millisecond) // a release reaches the box within 10 ms
			if err := os.WriteFile(filepath.Join(w.shared, "go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if how == "killed" {
				w.again()
			} else if err := w.Stop(); err != nil {
				t.Fatal(err)
			} else if err := w.Daemon.Start(); err != nil {
				t.Fatal(err)
			}
			b = w.bot("i", "w")
			after := b.call("box_get_session", object{"session_id": "s/1"})
			for _, key := range []string{"session_id", "backend_session_id", "image", "host_path", "persistent", "created_at", "memory_mb"} {
				if after[key] != before[key] {
					t.Errorf("%s: %v, was %v", key, after[key], before[key])
				}
			}
			if out := b.sh(s, "cat /tmp/f"); out != "kept" {
				t.Errorf("%q", out)
			}
			b.refused("BoxSessionConflictError", "box_create_session", spec("s/1", object{"persistent": true, "host_path": w.shared, "memory_mb": 99}))
			now := b.process("s/1", "p q")
			if now.Started != info.Started || now.Command != "sh" || now.Status != "running" || fmt.Sprint(now.EnvKeys) != "[K]" || now.Preview != "err" || now.Attached {
				t.Errorf("%+v, was %+v", now, info)
			}
			ws = b.attach("s-1", "p%20q")
			for i := range 1000 {
				if got, want := next(t, ws), fmt.Sprintf("later %d\n", i+1); got != want {
					t.Fatalf("%q, want %q", got, want)
				}
			}
			say(t, ws, "b")
			if got := next(t, ws); got != "b 1\n" {
				t.Errorf("%q", got)
			}
			b.call("box_delete_session", object{"session_id": "s/1"})
		})
	}
}

// TestFenceOutlivesTheDaemon: a generation that has been passed does not come back.
func TestFenceOutlivesTheDaemon(t *testing.T) {
	anyKernel(t)
	w := begin(t)
	newer := &bot{w.dial("i"), w, Context{"i", "w", 5}}
	newer.call("box_create_session", spec("s", nil))
	w.again()
	old := w.bot("i", "w")
	if m := old.refused("PermissionError", "box_exec", spec("s", object{"cmd": "true"})); !strings.Contains(m, "Stale Box placement generation") {
		t.Errorf("%q", m)
	}
	newer = &bot{old.Client, w, Context{"i", "w", 5}}
	newer.call("box_get_session", object{"session_id": "s"})
}

// TestDaemonStops: clients learn that the server is stopping.
func TestDaemonStops(t *testing.T) {
	t.Parallel()
	anyKernel(t)
	w := begin(t)
	b := w.bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	b.launch("s", "p", "cat")
	ws := b.attach("s", "p")
	say(t, ws, "x")
	if got := next(t, ws); got != "x\n" {
		t.Errorf("%q", got)
	}
	answer, err := b.Begin(&b.at, "box_exec", spec("s", object{"cmd": "sleep 1000", "timeout_sec": 600}))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, code := rest(t, ws); code != websocket.CloseGoingAway {
		t.Errorf("the relay: code %d", code)
	}
	within(t, "the connection ends", b.Done())
	if !websocket.IsCloseError(b.Err(), websocket.CloseGoingAway) || !strings.Contains(b.Err().Error(), "shutting down") {
		t.Errorf("the connection: %v", b.Err())
	}
	if r, ok := <-answer; ok && r.Code == 0 {
		t.Errorf("a command that did not end: %+v", r)
	}
	if err := w.Daemon.Start(); err != nil {
		t.Fatal(err)
	}
}

// TestConnectionLost: what a connection has asked for ends with it, and nothing else does.
func TestConnectionLost(t *testing.T) {
	t.Parallel()
	b := begin(t).bot("i", "w")
	s := spec("s", object{"host_path": b.w.shared})
	b.launchAfter(s, "s", "p", "sleep", "1000")
	_, err := b.Begin(&b.at, "box_exec", spec("s", object{"host_path": b.w.shared, "timeout_sec": 600, "cmd": `trap 'echo > termed' TERM; echo $$ > up; ` + testutil.SignalLoop}))
	if err != nil {
		t.Fatal(err)
	}
	b.w.await("the command runs", func() bool { return exists(b.w.shared + "/up") })
	b.Close()
	b.w.await("the command was asked to end", func() bool { return exists(b.w.shared + "/termed") })
	again := b.w.bot("i", "w")
	again.w.await("the command is gone", func() bool {
		return again.sh(s, `test -d /proc/$(cat up) && echo yes || echo no`) == "no"
	})
	if i := again.process("s", "p"); i.Status != "running" {
		t.Errorf("%+v", i)
	}
}

// launchAfter makes the session and starts a process in it.
func (b *bot) launchAfter(s object, session, id, command string, args ...string) {
	b.w.t.Helper()
	b.call("box_create_session", s)
	b.launch(session, id, command, args...)
}
