package langbot

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
)

// TestWorkspacesAreApart: one sees nothing of another, whatever the names.
func TestWorkspacesAreApart(t *testing.T) {
	anyKernel(t)
	w := begin(t)
	a, b := w.bot("i", "a"), w.bot("i", "b")
	a.sh(spec("s", nil), "echo secret > /workspace/f; echo secret > /tmp/f")
	a.launch("s", "p", "sleep", "1000")
	if out := b.sh(spec("s", nil), "cat /workspace/f /tmp/f 2>/dev/null; ls /workspace"); out != "" {
		t.Errorf("%q", out)
	}
	b.refused("BoxManagedProcessNotFoundError", "box_get_managed_process", object{"session_id": "s", "process_id": "p"})
	if s := b.call("box_status", object{}); s["active_sessions"] != 1.0 || s["managed_processes"] != 0.0 {
		t.Errorf("%v", s)
	}
	if s := a.call("box_status", object{}); s["active_sessions"] != 1.0 || s["managed_processes"] != 1.0 {
		t.Errorf("%v", s)
	}
	a.call("box_create_skill", object{"skill": object{"name": "mine"}})
	if s := b.call("box_list_skills", object{}); len(s["skills"].([]any)) != 0 {
		t.Errorf("%v", s)
	}
	b.call("box_delete_session", object{"session_id": "s"})
	a.call("box_get_session", object{"session_id": "s"})
	// A context of another instance, and none at all.
	for _, at := range []*Context{nil, {"j", "a", 1}} {
		err := a.Call(t.Context(), at, "box_get_sessions", object{}, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "PermissionError: ") {
			t.Errorf("%v: %v", at, err)
		}
	}
}

// TestTwoInstances: the first one that comes is the one; another is not let in.
func TestTwoInstances(t *testing.T) {
	anyKernel(t)
	w := begin(t)
	first := w.bot("first", "w")
	first.call("box_create_session", spec("s", nil))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var status *StatusError
	if _, err := w.dialer().Dial(ctx, "second"); !errors.As(err, &status) || status.Status != 401 || strings.TrimSpace(status.Body) != "Unauthorized" {
		t.Errorf("a second instance: %v", err)
	}
	again := w.bot("first", "w") // a second connection of the first
	again.call("box_get_session", object{"session_id": "s"})
	first.Close()
	again.call("box_get_session", object{"session_id": "s"})
}

// TestGeneration: a new generation ends everything of the old one, including actions in progress.
func TestGeneration(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	newer := &bot{b.Client, b.w, Context{"i", "w", 2}}
	other := &bot{b.Client, b.w, Context{"i", "other", 1}}
	other.call("box_create_session", spec("s", nil))
	b.call("box_create_session", spec("idle", nil))
	b.launch("idle", "p", "cat")
	ws := b.attach("idle", "p")
	say(t, ws, "hello")
	if got := next(t, ws); got != "hello\n" {
		t.Errorf("%q", got)
	}
	var wg sync.WaitGroup
	for i := range 3 {
		s := spec(fmt.Sprint("busy", i), object{"host_path": b.w.shared})
		wg.Go(func() {
			_, err := b.tryExec(s, fmt.Sprintf("echo > up%d; sleep 1000", i))
			if err == nil || !strings.Contains(err.Error(), "Stale Box placement generation") {
				t.Errorf("a command of the old generation: %v", err)
			}
		})
	}
	for i := range 3 {
		b.w.await("the commands run", func() bool { return exists(fmt.Sprintf("%s/up%d", b.w.shared, i)) })
	}
	got := newer.call("box_get_sessions", object{})
	if n := len(got["sessions"].([]any)); n != 0 {
		t.Errorf("%d sessions in the new generation", n)
	}
	wg.Wait()
	if _, code := rest(t, ws); code != websocket.CloseNormalClosure {
		t.Errorf("the relay of the old generation: code %d", code)
	}
	if m := b.refused("PermissionError", "box_exec", spec("idle", object{"cmd": "true"})); !strings.Contains(m, "Stale Box placement generation") {
		t.Errorf("%q", m)
	}
	if boxes := b.w.boxes(); len(boxes) != 1 {
		t.Errorf("boxes %v are there, want that of the other workspace", boxes)
	}
	other.call("box_get_session", object{"session_id": "s"})
	if out := newer.sh(spec("idle", nil), "ls /workspace"); out != "" {
		t.Errorf("%q", out)
	}
}

// TestGenerationRace: of many generations at once the highest one stays, and nothing of
// the others.
func TestGenerationRace(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	var wg sync.WaitGroup
	for g := range 12 {
		at := &bot{b.Client, b.w, Context{"i", "w", int64(g%6) + 1}}
		wg.Go(func() {
			r, err := at.tryExec(spec("s", nil), "echo $$ > /workspace/f; cat /workspace/f")
			if err != nil && !strings.Contains(err.Error(), "Stale Box placement generation") {
				t.Errorf("generation %d: %v", at.at.Generation, err)
			}
			if err == nil && (r.Status != "completed" || r.Stdout == "") {
				t.Errorf("generation %d: %v", at.at.Generation, r)
			}
		})
	}
	wg.Wait()
	last := &bot{b.Client, b.w, Context{"i", "w", 6}}
	if n := len(last.call("box_get_sessions", object{})["sessions"].([]any)); n != 1 {
		t.Errorf("%d sessions", n)
	}
	if s := last.call("box_status", object{}); s["active_sessions"] != 1.0 {
		t.Errorf("%v", s)
	}
	if boxes := b.w.boxes(); len(boxes) != 1 {
		t.Errorf("boxes %v", boxes)
	}
}
