package langbot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// TestRestart: sessions and processes are unchanged after a restart, and so are conflicts.
func TestRestart(t *testing.T) {
	bubble(t, func(b *bench) {
		before := b.call("box_create_session", specOf("s", object{"cpus": 0.5, "image": "mine:1"}))
		b.call("box_start_managed_process", proc("s", "any/id", "say", "up"))
		b.call("box_start_managed_process", proc("s", "ended", "exit", "3"))
		synctest.Wait()
		b.restart()
		s := b.call("box_get_session", object{"session_id": "s"})
		if s["backend_session_id"] != before["backend_session_id"] || s["created_at"] != before["created_at"] || s["image"] != "mine:1" || s["cpus"] != 0.5 {
			t.Errorf("%v", s)
		}
		ps := s["managed_processes"].(object)
		if p := ps["any/id"].(object); p["status"] != "running" || p["command"] != "say" || p["stderr_preview"] != "up" || len(p["env_keys"].([]any)) != 2 {
			t.Errorf("%v", p)
		}
		if p := ps["ended"].(object); p["status"] != "exited" || p["exit_code"] != 3.0 {
			t.Errorf("%v", p)
		}
		b.refused(protocol.SessionConflict, "box_exec", cmd("s", "true"))
		b.call("box_exec", specOf("s", object{"cmd": "true", "cpus": 0.5, "image": "mine:1"}))
		if st := b.call("box_status", object{}); st["managed_processes"] != 1.0 || st["active_sessions"] != 1.0 {
			t.Errorf("%v", st)
		}
		time.Sleep(301 * time.Second)
		synctest.Wait()
		if _, err := b.try(context.Background(), &at, "box_get_managed_process", object{"session_id": "s", "process_id": "ended"}); err == nil {
			t.Error("an ended process is kept for ever after a restart")
		}
		b.call("box_stop_managed_process", object{"session_id": "s", "process_id": "any/id"})
		time.Sleep(301 * time.Second)
		synctest.Wait()
		if ids := b.sessionsOf(at); len(ids) != 0 {
			t.Errorf("%q", ids)
		}
	})
}

// TestRecordsAndSessionsDiffer: a record without a session is removed, and a session without one.
func TestRecordsAndSessionsDiffer(t *testing.T) {
	b := open(t)
	b.call("box_create_session", specOf("gone", nil))
	b.call("box_create_session", specOf("kept", nil))
	b.call("box_start_managed_process", proc("kept", "unknown", "serve"))
	key := b.server.boxes[at.Runtime()+"-gone"].key
	keptKey := b.server.boxes[at.Runtime()+"-kept"].key
	// A process whose record was not written.
	if _, err := b.sessions.Start(context.Background(), session.Caller{}, keptKey, nil, session.ProcessSpec{ID: "stray", Args: []string{"sh", "-c", "x", "serve"}}); err != nil {
		t.Fatal(err)
	}
	// A session whose record was not written, and one that is not LangBot's.
	stray, foreign := session.Key{Tenant: "langbot", ID: at.Runtime() + "-stray"}, session.Key{Tenant: "langbot", ID: "somebody-s"}
	for _, k := range []session.Key{stray, foreign} {
		if _, err := b.sessions.Ensure(context.Background(), session.Caller{}, k, policy.Request{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.sessions.Remove(context.Background(), session.Caller{}, key); err != nil { // while no server listens
		t.Fatal(err)
	}
	sub := b.sessions.Subscribe("", 0)
	defer sub.Close()
	b.server = must(New(b.o))
	wanted := map[string]bool{stray.ID: true, "stray": true} // events that must come
	timeout := time.After(time.Minute)
	for len(wanted) > 0 {
		select {
		case e := <-sub.C:
			if e.Type == session.EventRemoved {
				delete(wanted, e.Session)
			}
			if e.Type == session.EventProcessStopped {
				delete(wanted, e.Process)
			}
		case <-timeout:
			t.Fatalf("not removed: %v", wanted)
		}
	}
	if ids := b.sessionsOf(at); !slices.Equal(ids, []string{"kept"}) {
		t.Errorf("%q", ids)
	}
	if _, err := b.sessions.Get(foreign); err != nil {
		t.Errorf("the session of somebody else: %v", err)
	}
	b.call("box_create_session", specOf("gone", object{"cpus": 2}))
	b.call("box_create_session", specOf("stray", object{"cpus": 2}))
}

// TestRestartWithEnded: ended processes that expire while others are taken over do not remove the
// records of those.
func TestRestartWithEnded(t *testing.T) {
	b := open(t)
	b.call("box_init", object{"limits": object{"completed_process_retention_sec": 86400, "max_managed_processes": 1024}})
	for i := range 40 {
		id := fmt.Sprint("s", i)
		b.call("box_create_session", specOf(id, nil))
		for _, p := range []string{"a", "b", "z"} {
			b.call("box_start_managed_process", proc(id, p, "exit", "0"))
		}
		b.call("box_start_managed_process", proc(id, "m", "serve"))
	}
	b.o.Init = `{"limits": {"completed_process_retention_sec": 0}}`
	for range 2 { // the second one sees what the first has recorded
		b.restart()
		for i := range 40 {
			if p := b.info(fmt.Sprint("s", i), "m"); p["status"] != "running" {
				t.Errorf("%v", p)
			}
		}
	}
}

// TestMountsOnRecord: a daemon that ends between a change of the mounts and its record leaves a box
// whose mounts differ from the record.
func TestMountsOnRecord(t *testing.T) {
	b := open(t)
	with := func(target string) object {
		return specOf("s", object{"cmd": "true", "extra_mounts": []any{object{"host_path": b.path("shared"), "mount_path": target}}})
	}
	b.call("box_exec", with("/old"))
	s := b.server.boxes[at.Runtime()+"-s"]
	old := s.spec
	b.call("box_exec", with("/new"))
	s.spec = old
	b.server.mu.Lock()
	noted := b.server.noteLocked(s)
	b.server.mu.Unlock()
	if err := noted.wait(); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.call("box_exec", with("/old"))
	if have := targets(b.host.Only()); !slices.Contains(have, "/old") || slices.Contains(have, "/new") {
		t.Errorf("%q", have)
	}
}

// TestLateRecord: a process that starts while its session is removed does not write the session's
// record again.
func TestLateRecord(t *testing.T) {
	b := open(t)
	ctx := context.Background()
	b.call("box_create_session", specOf("s", nil))
	s := b.server.boxes[at.Runtime()+"-s"]
	k := &call{s: b.server, conn: b.conn("i"), at: at}
	p, err := k.replaceProcess(ctx, s, &protocol.ProcessSpec{ProcessID: "p", Command: "serve"})
	if err != nil {
		t.Fatal(err)
	}
	b.call("box_delete_session", object{"session_id": "s"})
	if err := k.launch(ctx, p, &protocol.ProcessSpec{ProcessID: "p", Command: "serve"}); err == nil {
		t.Error("a process in a session that is gone")
	}
	if err := b.server.store.remove("none").wait(); err != nil { // by then, all earlier changes are written
		t.Fatal(err)
	}
	records := 0
	if err := b.server.store.load(func(string, []byte) { records++ }); err != nil || records != 0 {
		t.Errorf("%d records, %v", records, err)
	}
}

// TestStrayInTheWay: a session of the manager without a record is not handed out.
func TestStrayInTheWay(t *testing.T) {
	b := open(t)
	key := session.Key{Tenant: "langbot", ID: at.Runtime() + "-s"}
	v, err := b.sessions.Ensure(context.Background(), session.Caller{}, key, policy.Request{Wishes: spec.Wishes{Profile: "langbot"}})
	if err != nil {
		t.Fatal(err)
	}
	if s := b.call("box_create_session", specOf("s", nil)); s["backend_session_id"] == v.Box {
		t.Errorf("%v is the box of somebody else", s)
	}
	key.ID = at.Runtime() + "-t"
	if _, err = b.sessions.Ensure(context.Background(), session.Caller{}, key, policy.Request{Wishes: spec.Wishes{Profile: "langbot"}}); err != nil {
		t.Fatal(err)
	}
	b.call("box_create_session", specOf("t", object{"cpus": 0.5})) // nor does it conflict
}

func TestDamagedDatabase(t *testing.T) {
	b := open(t)
	b.call("box_create_session", specOf("s", nil))
	b.stop()
	if err := os.WriteFile(b.o.DB, []byte("no database at all, and long enough to be read as one"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	if kept, _ := filepath.Glob(b.o.DB + ".damaged-*"); len(kept) != 1 {
		t.Errorf("kept %q", kept)
	}
	b.call("box_create_session", specOf("s", object{"cpus": 2}))
}

// A session that a client creates while an unknown one of its name is still being removed survives
// that removal.
func TestUnknownIsRemovedFirst(t *testing.T) {
	b := open(t)
	b.call("box_create_session", specOf("s", nil))
	b.stop()
	if err := os.Remove(b.o.DB); err != nil {
		t.Fatal(err)
	}
	release := b.hangIn("remove")
	b.start()
	created := make(chan error, 1)
	go func() {
		_, err := b.try(context.Background(), &at, "box_create_session", specOf("s", object{"cpus": 2}))
		created <- err
	}()
	release()
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	if s := b.call("box_get_session", object{"session_id": "s"}); s["cpus"] != 2.0 {
		t.Errorf("%v", s)
	}
}
