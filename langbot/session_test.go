package langbot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// TestCompared: each request differs in one field and in all later ones. The error names the first,
// with the session's value.
func TestCompared(t *testing.T) {
	b := open(t)
	b.call("box_create_session", specOf("s", nil))
	changes := []struct {
		field string
		value any
		have  string
	}{
		{"network", "on", "off"}, {"image", "other:1", protocol.DefaultImage}, {"host_path", b.path("shared"), "None"}, {"host_path_mode", "ro", "rw"},
		{"mount_path", "/data", "/workspace"}, {"persistent", true, "False"}, {"cpus", 0.5, "1.0"}, {"memory_mb", 256, "512"}, {"pids_limit", 64, "128"},
		{"read_only_rootfs", false, "True"}, {"workspace_quota_mb", 8, "0"},
	}
	for i, c := range changes {
		change := object{"workdir": "/data"}
		for _, later := range changes[i:] {
			change[later.field] = later.value
		}
		for _, action := range []string{"box_create_session", "box_exec"} {
			change["cmd"] = "true"
			if i > 4 {
				change["workdir"] = "/workspace"
			}
			text := b.refused(protocol.SessionConflict, action, specOf("s", change))
			if want := fmt.Sprintf("Box session s already exists with %s=%s", c.field, c.have); text != want {
				t.Errorf("%q, want %q", text, want)
			}
		}
	}
	for _, c := range []object{{"workdir": "/workspace/a"}, {"env": object{"A": "1"}}, {"timeout_sec": 5}, {"skill_name": "x"}, {"cmd": "true"}, {"extra_mounts": []any{}}} {
		b.call("box_create_session", specOf("s", c))
	}
	if len(b.host.Made()) != 1 {
		t.Errorf("%d boxes were made", len(b.host.Made()))
	}
}

func TestNames(t *testing.T) {
	b := open(t)
	if s := b.call("box_create_session", specOf(" a/b c:d ", nil)); s["session_id"] != "a-b-c-d" {
		t.Errorf("%v", s)
	}
	for _, id := range []string{"a/b c:d", "a-b-c-d"} {
		if s := b.call("box_get_session", object{"session_id": id}); s["session_id"] != "a-b-c-d" {
			t.Errorf("%v", s)
		}
	}
	b.refused(protocol.KeyError, "box_get_session", object{})
	b.refused(protocol.ValueError, "box_get_session", object{"session_id": "//"})
	for _, id := range []string{"..", "a..b", "sha256:x", strings.Repeat("l", 3000)} {
		b.call("box_create_session", specOf(id, nil))
		if d := b.call("box_delete_session", object{"session_id": id}); d["deleted"] != id {
			t.Errorf("%v", d)
		}
	}
	b.refused(protocol.BoxValidation, "box_create_session", specOf(strings.Repeat("l", 5000), nil))
}

// TestTenants: a workspace does not see the sessions of another.
func TestTenants(t *testing.T) {
	b := open(t)
	other, later := at, at
	other.Workspace = "v"
	b.call("box_create_session", specOf("s", nil))
	b.callAt(other, "box_create_session", specOf("s", object{"cpus": 2}))
	b.refusedAt(other, protocol.SessionNotFound, "box_get_session", object{"session_id": at.Runtime() + "-s"})
	for _, c := range []protocol.Context{at, other} {
		if ids := b.sessionsOf(c); !slices.Equal(ids, []string{"s"}) {
			t.Errorf("%v: %q", c, ids)
		}
		if st := b.callAt(c, "box_status", object{}); st["active_sessions"] != 1.0 {
			t.Errorf("%v", st)
		}
	}
	_ = later
}

func TestLastUsed(t *testing.T) {
	bubble(t, func(b *bench) {
		first := b.call("box_create_session", specOf("s", nil))
		used := func() any { return b.call("box_get_session", object{"session_id": "s"})["last_used_at"] }
		if first["created_at"] != first["last_used_at"] && first["created_at"].(string) > first["last_used_at"].(string) {
			t.Errorf("%v", first)
		}
		for _, step := range []struct {
			what  func()
			moves bool
		}{
			{func() { b.sessionsOf(at) }, false},
			{func() { b.call("box_status", object{}) }, false},
			{func() { b.call("box_exec", cmd("s", "true")) }, true},
			{func() { b.call("box_create_session", specOf("s", nil)) }, true},
			{func() { b.call("box_start_managed_process", proc("s", "p", "serve")) }, true},
			{func() { b.call("box_get_managed_process", object{"session_id": "s", "process_id": "p"}) }, false},
			{func() { b.call("box_stop_managed_process", object{"session_id": "s", "process_id": "p"}) }, true},
		} {
			before := used()
			time.Sleep(time.Second)
			step.what()
			if moved := used() != before; moved != step.moves {
				t.Errorf("last_used_at moved: %v, want %v", moved, step.moves)
			}
		}
		if s := b.call("box_get_session", object{"session_id": "s"}); s["created_at"] != first["created_at"] {
			t.Errorf("%v", s)
		}
	})
}

func TestTTL(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("idle", nil))
		b.call("box_create_session", specOf("kept", object{"persistent": true}))
		time.Sleep(time.Second)
		b.call("box_start_managed_process", func() object { b.call("box_create_session", specOf("busy", nil)); return proc("busy", "p", "serve") }())
		time.Sleep(301 * time.Second)
		synctest.Wait()
		if ids := b.sessionsOf(at); !slices.Equal(ids, []string{"kept", "busy"}) {
			t.Errorf("%q", ids)
		}
		b.refused(protocol.SessionNotFound, "box_get_session", object{"session_id": "idle"})
		b.call("box_stop_managed_process", object{"session_id": "busy", "process_id": "p"})
		time.Sleep(301 * time.Second)
		synctest.Wait()
		if ids := b.sessionsOf(at); !slices.Equal(ids, []string{"kept"}) {
			t.Errorf("%q", ids)
		}
		b.call("box_create_session", specOf("idle", object{"cpus": 2})) // another one of this name
		if n := len(b.server.boxes); n != 2 {
			t.Errorf("%d sessions", n)
		}
	})
}

// TestMounts: different mounts are not a conflict, and changing them does not affect the session.
func TestMounts(t *testing.T) {
	b := open(t)
	for _, name := range []string{"a", "b"} {
		must(0, os.MkdirAll(b.path("shared/"+name), 0o755))
	}
	mount := func(name, target, mode string) object {
		return object{"host_path": b.path("shared/" + name), "mount_path": target, "mode": mode}
	}
	s := b.call("box_create_session", specOf("s", object{"extra_mounts": []any{mount("a", "/a", "rw"), mount("b", "/none", "none")}}))
	box := b.host.Only()
	for _, c := range []struct {
		mounts []any
		want   []string
	}{
		{[]any{mount("a", "/a", "rw"), mount("b", "/b", "ro")}, []string{"/workspace", "/a", "/b"}},
		{[]any{mount("b", "/b", "ro"), mount("a", "/a", "rw"), mount("a", "/a", "rw")}, []string{"/workspace", "/a", "/b"}},
		{[]any{mount("b", "/b", "rw")}, []string{"/workspace", "/b"}},
		{[]any{}, []string{"/workspace"}},
	} {
		b.call("box_exec", specOf("s", object{"cmd": "true", "extra_mounts": c.mounts}))
		if got := targets(box); !slices.Equal(got, c.want) {
			t.Errorf("%v: mounts at %q, want %q", c.mounts, got, c.want)
		}
	}
	if now := b.call("box_get_session", object{"session_id": "s"}); now["created_at"] != s["created_at"] || len(b.host.Made()) != 1 {
		t.Errorf("%v, %d boxes", now, len(b.host.Made()))
	}
	for _, bad := range []object{
		{"host_path": "/etc", "mount_path": "/etc2", "mode": "rw"},
		{"host_path": b.path("shared") + "/../skills", "mount_path": "/x", "mode": "rw"},
		{"host_path": "C:\\x", "mount_path": "/x", "mode": "rw"},
		{"host_path": "/boxd/skills/tenants/ws-000000000000000000000000/x", "mount_path": "/x", "mode": "ro"},
		{"host_path": "/boxd/skills", "mount_path": "/x", "mode": "ro"},
	} {
		b.refused(protocol.BoxValidation, "box_exec", specOf("s", object{"cmd": "true", "extra_mounts": []any{bad}}))
	}
	b.refused(protocol.BoxValidation, "box_exec", specOf("t", object{"cmd": "true", "host_path": "/"}))
	b.call("box_exec", specOf("s", object{"cmd": "true"})) // as it was
}

func TestRequest(t *testing.T) {
	b := open(t)
	b.call("box_create_skill", create("one")) // creates the volume
	b.call("box_create_session", specOf("s", object{"host_path": b.path("shared/new/deep"), "mount_path": "/data/", "workdir": "/data/x",
		"cpus": 0.5, "memory_mb": 64, "pids_limit": 32, "read_only_rootfs": false, "persistent": true,
		"extra_mounts": []any{object{"host_path": "/boxd/skills/tenants/" + at.Namespace() + "/one", "mount_path": "/data/.skills/one", "mode": "rw"}}}))
	spec := b.host.Only().Spec()
	if spec.Limits.CPUs != 0.5 || spec.Limits.Memory != 64<<20 || spec.Limits.PIDs != 32 || !spec.WritableRoot || spec.Image != "host" {
		t.Errorf("%+v", spec)
	}
	if len(spec.Mounts) != 2 || spec.Mounts[0].Source != b.path("shared/new/deep") || spec.Mounts[0].Target != "/data" || spec.Mounts[0].Within != b.path("shared") ||
		spec.Mounts[1].Volume != "skills-"+at.Namespace() || spec.Mounts[1].Source != "/one" || spec.Mounts[1].Within != "" {
		t.Errorf("%+v", spec.Mounts)
	}
	if _, err := os.Stat(b.path("shared/new/deep")); err != nil {
		t.Errorf("the host path is made: %v", err)
	}
	if s := b.call("box_get_session", object{"session_id": "s"}); s["host_path"] != b.path("shared/new/deep") || s["mount_path"] != "/data/" || s["cpus"] != 0.5 || s["read_only_rootfs"] != false || s["persistent"] != true {
		t.Errorf("%v", s)
	}
}

func TestNetwork(t *testing.T) {
	b := open(t, func(o *Options) { o.RefuseNetwork = true })
	for _, action := range []string{"box_create_session", "box_exec"} {
		b.refused(protocol.BackendUnavailable, action, specOf("s", object{"network": "on", "cmd": "true"}))
	}
	var log logBuffer
	b = open(t, logged(&log))
	b.call("box_exec", specOf("off", object{"cmd": "true"}))
	if s := b.call("box_get_session", object{"session_id": "off"}); s["warnings"] != nil || strings.Contains(log.String(), "network") {
		t.Errorf("without being asked for: %v; log: %s", s, log.String())
	}
	// The default, which LangBot's MCP sessions ask for.
	mcp := specOf("mcp-shared", object{"network": "on", "persistent": true, "read_only_rootfs": false})
	for range 2 {
		s := b.call("box_create_session", mcp)
		if list, _ := s["warnings"].([]any); s["network"] != "on" || len(list) != 1 || !strings.Contains(list[0].(string), "no network") {
			t.Errorf("%v", s)
		}
	}
	b.restart()
	for _, v := range b.sessions.List("") {
		if strings.HasSuffix(v.ID, "-mcp-shared") != (len(v.Resolved.Warnings) == 1) {
			t.Errorf("%s: %v", v.ID, v.Resolved.Warnings)
		}
	}
	if s := b.call("box_get_session", object{"session_id": "mcp-shared"}); len(s["warnings"].([]any)) != 1 {
		t.Errorf("after a restart: %v", s)
	}
	if n := strings.Count(log.String(), "a session lacks something"); n != 1 {
		t.Errorf("the log warns %d times: %s", n, log.String())
	}
	b.refused(protocol.SessionConflict, "box_create_session", specOf("mcp-shared", object{"persistent": true, "read_only_rootfs": false}))
}

func TestCapacity(t *testing.T) {
	b := open(t)
	b.call("box_init", object{"limits": object{"max_sessions": 2}})
	other := at
	other.Workspace = "v"
	b.call("box_create_session", specOf("1", nil))
	b.callAt(other, "box_create_session", specOf("1", nil))
	for _, action := range []string{"box_create_session", "box_exec"} {
		if text := b.refused(protocol.CapacityExceeded, action, cmd("2", "true")); text != "Box session capacity reached (2)" {
			t.Errorf("%q", text)
		}
	}
	b.call("box_exec", cmd("1", "true"))
	foreign := protocol.Context{Instance: "j", Workspace: "w", Generation: 1}
	b.callAt(foreign, "box_create_session", specOf("2", nil)) // limits are those of an instance
	b.call("box_delete_session", object{"session_id": "1"})
	b.call("box_create_session", specOf("2", nil))
}

// TestCapacityCounts: sessions that are being created or removed count.
func TestCapacityCounts(t *testing.T) {
	for _, op := range []string{"create", "remove"} {
		bubble(t, func(b *bench) {
			b.call("box_init", object{"limits": object{"max_sessions": 1}})
			wait, entered := make(chan struct{}), make(chan struct{}, 1)
			if op == "remove" {
				b.call("box_create_session", specOf("a", nil))
			}
			b.host.SetHook(func(ctx context.Context, what, _ string) error {
				if what == op {
					entered <- struct{}{}
					<-wait
				}
				return nil
			})
			done := make(chan error, 1)
			go func() {
				var err error
				if op == "create" {
					_, err = b.try(context.Background(), &at, "box_create_session", specOf("a", nil))
				} else {
					_, err = b.try(context.Background(), &at, "box_delete_session", object{"session_id": "a"})
				}
				done <- err
			}()
			<-entered
			b.refused(protocol.CapacityExceeded, "box_create_session", specOf("b", nil))
			b.refused(protocol.SessionNotFound, "box_get_session", object{"session_id": "a"})
			close(wait)
			if err := <-done; err != nil {
				t.Errorf("%s: %v", op, err)
			}
			b.host.SetHook(nil)
			if op == "remove" {
				b.call("box_create_session", specOf("b", nil))
			}
		})
	}
}

// TestSlowCreation: a creation delays only requests for its own ID; a deletion waits for it.
func TestSlowCreation(t *testing.T) {
	bubble(t, func(b *bench) {
		wait, entered := make(chan struct{}), make(chan struct{}, 1)
		var first atomic.Bool
		b.host.SetHook(func(ctx context.Context, op, _ string) error {
			if op == "create" && first.CompareAndSwap(false, true) {
				entered <- struct{}{}
				<-wait
			}
			return nil
		})
		results := make(chan string, 3)
		ask := func(name, action string, data object) {
			_, err := b.try(context.Background(), &at, action, data)
			results <- fmt.Sprint(name, " ", err)
		}
		go ask("create", "box_create_session", specOf("slow", nil))
		<-entered
		go ask("exec", "box_exec", cmd("slow", "true"))
		synctest.Wait()
		b.call("box_exec", cmd("other", "true"))
		select {
		case r := <-results:
			t.Fatalf("%s, before the session was made", r)
		default:
		}
		close(wait)
		got := []string{<-results, <-results}
		slices.Sort(got)
		if !slices.Equal(got, []string{"create <nil>", "exec <nil>"}) {
			t.Errorf("%q", got)
		}
		if len(b.host.Made()) != 2 {
			t.Errorf("%d boxes", len(b.host.Made()))
		}
	})
}

func TestDeleteWaitsForCreation(t *testing.T) {
	bubble(t, func(b *bench) {
		wait, entered := make(chan struct{}), make(chan struct{}, 1)
		b.host.SetHook(func(ctx context.Context, op, _ string) error {
			if op == "create" {
				entered <- struct{}{}
				<-wait
			}
			return nil
		})
		created, deleted := make(chan error, 1), make(chan error, 2)
		go func() {
			_, err := b.try(context.Background(), &at, "box_create_session", specOf("s", nil))
			created <- err
		}()
		<-entered
		for range 2 {
			go func() {
				_, err := b.try(context.Background(), &at, "box_delete_session", object{"session_id": "s"})
				deleted <- err
			}()
		}
		synctest.Wait()
		if len(deleted) > 0 {
			t.Fatalf("deleted before it was made: %v", <-deleted)
		}
		close(wait)
		one, other := <-deleted, <-deleted
		if one == nil {
			one, other = other, one
		}
		if other != nil || one == nil || !strings.HasPrefix(one.Error(), "BoxSessionNotFoundError: ") {
			t.Errorf("of two deletions: %v, %v", one, other)
		}
		// Its creator gets an error, or was faster.
		if err := <-created; err != nil && !strings.HasPrefix(err.Error(), "BoxError: session s ended") {
			t.Error(err)
		}
		if ids := b.host.IDs(); len(ids) != 0 || len(b.server.boxes) != 0 {
			t.Errorf("boxes %q, %d sessions", ids, len(b.server.boxes))
		}
	})
}

// TestCreatorGivesUp: another request that waits for the same session then creates it.
func TestCreatorGivesUp(t *testing.T) {
	bubble(t, func(b *bench) {
		entered := make(chan struct{}, 1)
		var first atomic.Bool
		b.host.SetHook(func(ctx context.Context, op, _ string) error {
			if op == "create" && first.CompareAndSwap(false, true) {
				entered <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		ctx, cancel := context.WithCancel(context.Background())
		gone, got := make(chan error, 1), make(chan error, 1)
		go func() { _, err := b.try(ctx, &at, "box_create_session", specOf("s", nil)); gone <- err }()
		<-entered
		go func() {
			_, err := b.try(context.Background(), &at, "box_create_session", specOf("s", nil))
			got <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-gone; err == nil {
			t.Error("it was given up and has a result")
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}

// TestRemovalThatFails: the session stays closed and counts until its removal succeeds.
func TestRemovalThatFails(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", nil))
		fail := errors.New("busy")
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "remove" {
				return fail
			}
			return nil
		})
		_, err := b.try(context.Background(), &at, "box_delete_session", object{"session_id": "s"})
		if err == nil || !strings.HasPrefix(err.Error(), "BoxError: ") {
			t.Errorf("%v", err)
		}
		b.refused(protocol.SessionNotFound, "box_get_session", object{"session_id": "s"})
		b.refused(protocol.SessionNotFound, "box_delete_session", object{"session_id": "s"})
		again := make(chan error, 1)
		go func() {
			_, err := b.try(context.Background(), &at, "box_exec", cmd("s", "true"))
			again <- err
		}()
		synctest.Wait()
		b.host.SetHook(nil)
		if err := <-again; err != nil {
			t.Error(err)
		}
		if len(b.host.Made()) != 2 || len(b.server.boxes) != 1 {
			t.Errorf("%d boxes, %d sessions", len(b.host.Made()), len(b.server.boxes))
		}
	})
}

func TestShutdownIsOfTheInstance(t *testing.T) {
	b := open(t)
	v := protocol.Context{Instance: "i", Workspace: "v", Generation: 3}
	foreign := protocol.Context{Instance: "j", Workspace: "w", Generation: 1}
	for _, c := range []protocol.Context{at, v, foreign} {
		b.callAt(c, "box_create_session", specOf("s", nil))
	}
	b.call("box_shutdown", object{})
	for _, c := range []protocol.Context{at, v} {
		b.refusedAt(c, protocol.SessionNotFound, "box_get_session", object{"session_id": "s"})
	}
	b.callAt(foreign, "box_get_session", object{"session_id": "s"})
	b.call("box_exec", cmd("s", "true"))
}

// TestRemovedElsewhere: an operator removes a session through another API.
func TestRemovedElsewhere(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", nil))
		key := b.server.boxes[at.Runtime()+"-s"].key
		if err := b.sessions.Remove(context.Background(), session.Caller{}, key); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(b.server.boxes) != 0 {
			t.Error("it is still known")
		}
		b.call("box_create_session", specOf("s", object{"cpus": 2}))
	})
}

// TestRemovedUnderAnExec: a command whose session is gone, before an event reported that, gets a
// new session.
func TestRemovedUnderAnExec(t *testing.T) {
	b := open(t)
	for range 20 {
		b.call("box_create_session", specOf("s", nil))
		if err := b.sessions.Remove(context.Background(), session.Caller{}, must(b.server.keyOf(at.Runtime()+"-s"))); err != nil {
			t.Fatal(err)
		}
		b.call("box_exec", cmd("s", "true"))
		b.call("box_create_session", specOf("s", nil))
		b.call("box_delete_session", object{"session_id": "s"})
	}
}

// TestLongNames: a session whose name is too long for the manager works like others, even without a
// record.
func TestLongNames(t *testing.T) {
	b := open(t)
	long, other := strings.Repeat("a.b_", 200), strings.Repeat("a.b_", 200)+"c"
	for _, id := range []string{long, other} {
		b.call("box_create_session", specOf(id, object{"persistent": true}))
	}
	b.call("box_exec", specOf(long, object{"cmd": "true", "persistent": true}))
	if ids := b.sessionsOf(at); !slices.Contains(ids, long) || !slices.Contains(ids, other) || len(b.host.IDs()) != 2 {
		t.Errorf("%.100q", ids)
	}
	b.restart()
	b.call("box_delete_session", object{"session_id": other})
	if err := b.server.store.remove(b.server.boxes[at.Runtime()+"-"+long].physical).wait(); err != nil {
		t.Fatal(err)
	}
	sub := b.sessions.Subscribe("", 0)
	defer sub.Close()
	if err := b.server.Close(); err != nil {
		t.Fatal(err)
	}
	b.server = must(New(b.o))
	for timeout := time.After(time.Minute); len(b.host.IDs()) > 0; {
		select {
		case <-sub.C:
		case <-timeout:
			t.Fatal("a session on no record is not removed")
		}
	}
}

// TestBoundedNames: values that are kept for the life of a session are shorter than a message.
func TestBoundedNames(t *testing.T) {
	b := open(t)
	long := "/" + strings.Repeat("x", 5000)
	for _, change := range []object{{"image": long}, {"host_path": long, "host_path_mode": "none"}, {"mount_path": long}, {"workdir": long},
		{"extra_mounts": []any{object{"host_path": long, "mount_path": "/m", "mode": "none"}}}} {
		b.refused(protocol.BoxValidation, "box_create_session", specOf("s", change))
	}
	b.refused(protocol.BoxValidation, "box_create_session", specOf(long, nil))
	var none []any
	for i := range 1000 {
		none = append(none, object{"host_path": fmt.Sprint("/", i), "mount_path": "/m", "mode": "none"})
	}
	b.call("box_create_session", specOf("s", object{"extra_mounts": none}))
	if n := len(b.server.boxes[at.Runtime()+"-s"].spec.ExtraMounts); n != 0 {
		t.Errorf("%d mounts are kept that are none", n)
	}
}

// TestMountsOfTwo: a request changes the mounts just after another did. The last one wins, in the box
// and on record.
func TestMountsOfTwo(t *testing.T) {
	bubble(t, func(b *bench) {
		use := func(action, target string) {
			b.call(action, specOf("s", object{"cmd": "true", "extra_mounts": []any{object{"host_path": b.path("shared"), "mount_path": target}}}))
		}
		use("box_create_session", "/first")
		var held sync.Once
		goOn := make(chan struct{})
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "update" {
				held.Do(func() { <-goOn })
			}
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() { use("box_create_session", "/second") })
		synctest.Wait()
		wg.Go(func() { use("box_exec", "/third") })
		synctest.Wait() // it waits for the second request, and gets the lock before that needs it again
		close(goOn)
		wg.Wait()
		recorded := b.server.boxes[at.Runtime()+"-s"].spec.ExtraMounts[0].MountPath
		if have := targets(b.host.Only()); !slices.Contains(have, recorded) {
			t.Errorf("the box has %q, on record is %s", have, recorded)
		}
	})
}

// TestRates: actions of workspaces obey the rates of the tenant, and so do their boxes and commands.
func TestRates(t *testing.T) {
	b := open(t)
	tenant := b.server.o.Tenant
	b.stop()
	b.tenants = map[string]policy.Tenant{tenant: {Rates: policy.Rates{Requests: 0.001, RequestsBurst: 6, Creates: 0.001, Execs: 0.001}}}
	b.start()
	b.call("box_create_session", specOf("s", nil))
	if text := b.refused(protocol.CapacityExceeded, "box_create_session", specOf("r", nil)); !strings.Contains(text, "creates: limit 0.001 per second, burst 1: retry in ") {
		t.Error(text)
	}
	b.call("box_exec", specOf("s", object{"cmd": "true"}))
	if text := b.refused(protocol.CapacityExceeded, "box_exec", specOf("s", object{"cmd": "true"})); !strings.Contains(text, "execs: ") {
		t.Error(text)
	}
	b.call("box_get_sessions", object{})
	b.call("box_get_sessions", object{})
	if text := b.refused(protocol.CapacityExceeded, "box_get_sessions", object{}); !strings.Contains(text, "requests: ") {
		t.Error(text)
	}
	b.call("box_health", object{}) // no action of a workspace
}

// TestNetworkOffered: who asks for a network gets it, narrowed as the operator says, unless it may
// have none; who asks for none gets none, whatever the profile's default.
func TestNetworkOffered(t *testing.T) {
	narrow := &spec.NetworkRules{Allow: []string{"pypi.org"}}
	b := open(t, func(o *Options) { o.OfferNetwork, o.NetworkRules = true, narrow })
	b.network = true
	b.profile.Network = new(true)
	b.restart()
	b.call("box_create_session", specOf("on", object{"network": "on"}))
	b.call("box_create_session", specOf("off", nil))
	for range 2 {
		b.call("box_exec", specOf("on", object{"network": "on", "cmd": "true"}))
		for _, v := range b.sessions.List("") {
			on := strings.HasSuffix(v.ID, "-on")
			if r := v.Resolved; r.Network != on || on != r.NetworkRules.Equal(narrow) || len(r.Warnings) > 0 {
				t.Errorf("%s: network %t, rules %+v, warnings %q", v.ID, r.Network, r.NetworkRules, r.Warnings)
			}
		}
		b.restart()
	}
}

// TestNetworkDenied: a command that fails tells what was refused meanwhile, on stderr, too.
func TestNetworkDenied(t *testing.T) {
	b := open(t, func(o *Options) { o.OfferNetwork = true })
	b.network = true
	b.restart()
	b.call("box_create_session", specOf("s", object{"network": "on"}))
	b.host.SetHook(func(ctx context.Context, op, box string) error {
		if op == "start" {
			c, err := b.host.Box(box).Connect(ctx, netip.MustParseAddrPort("127.0.0.1:3128"))
			if err != nil {
				return err
			}
			defer c.Close()
			io.WriteString(c, "CONNECT mail.example:25 HTTP/1.1\r\nHost: mail.example:25\r\n\r\n")
			io.ReadAll(c)
		}
		return nil
	})
	for cmd, stderr := range map[string]string{"exit 1": "boxd: refused: network mail.example:25 (rule: smtp)", "err x": "x\nboxd: refused: network mail.example:25 (rule: smtp)", "true": ""} {
		r := b.call("box_exec", specOf("s", object{"network": "on", "cmd": cmd}))
		denied, _ := r["denied"].([]any)
		if len(denied) != 1 || r["stderr"] != stderr {
			t.Errorf("%s: %v", cmd, r)
		}
	}
}
