package langbot

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/langbot/protocol"
)

// A relay request that passed the door before its generation ended is not served afterwards.
func TestRelayBehindFence(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", nil))
		b.call("box_start_managed_process", proc("s", "p", "serve"))
		held, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "update" {
				once.Do(func() { close(held) })
				<-release
			}
			return nil
		})
		remount := specOf("s", object{"cmd": "true", "extra_mounts": []any{object{"host_path": b.path("shared"), "mount_path": "/x"}}})
		go func() { b.try(context.Background(), &at, "box_exec", remount) }()
		<-held
		next := at
		next.Generation = 2
		done := make(chan struct{})
		go func() { b.try(context.Background(), &next, "box_status", object{}); close(done) }()
		synctest.Wait() // the generation is 2; relays were shut; the session waits for its lock
		if now, _ := b.server.Current("i", "w"); now != 2 {
			t.Fatal(now)
		}
		if _, err := b.server.relayOf(at, at.Runtime()+"-s", "p"); err == nil {
			t.Error("a relay of generation 1 is served at generation 2")
		}
		close(release)
		<-done
	})
}

// A process without a record is replaced like one with a record.
func TestStartAgainAfterCrash(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", nil))
		b.call("box_start_managed_process", proc("s", "p", "stubborn"))
		box := b.server.boxes[at.Runtime()+"-s"]
		if err := b.server.store.put(box.physical, sessionRecord{At: box.at, Spec: box.spec}).wait(); err != nil {
			t.Fatal(err)
		}
		b.restart()
		b.call("box_status", object{})
		synctest.Wait()
		if _, err := b.try(context.Background(), &at, "box_start_managed_process", proc("s", "p", "serve")); err != nil {
			t.Errorf("start: %v", err)
		}
	})
}

// slowLog is a slow audit log.
type slowLog struct{}

func (slowLog) Append(audit.Entry) error {
	time.Sleep(time.Millisecond)
	return nil
}

// An expired session does not count, even if its event is late.
func TestExpiredIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t)
		b.stop()
		b.audit = slowLog{}
		b.start()
		b.call("box_init", object{"limits": object{"max_sessions": 3}})
		for i := range 3 {
			b.call("box_create_session", specOf(fmt.Sprint("s", i), nil))
		}
		time.Sleep(time.Hour)
		if n := len(b.sessions.List(b.o.Tenant)); n != 0 {
			t.Fatalf("%d sessions", n)
		}
		b.server.mu.Lock()
		n := len(b.server.boxes)
		b.server.mu.Unlock()
		if n != 0 {
			t.Errorf("%d sessions in the registry that do not exist", n)
		}
		b.call("box_create_session", specOf("new", nil))
		b.stop()
	})
}

// fullDisk is an audit log that refuses removals.
type fullDisk struct{ full atomic.Bool }

func (d *fullDisk) Append(e audit.Entry) error {
	if d.full.Load() && e.Action == "remove" {
		return errors.New("no space left on device")
	}
	return nil
}

func opened(t *testing.T, fn func(b *bench, d *fullDisk)) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t)
		b.stop()
		d := &fullDisk{}
		b.audit = d
		b.start()
		fn(b, d)
		d.full.Store(false)
		b.stop()
	})
}

// If a removal did not begin, it can be requested again, and the session can still be used.
func TestRefusedRemoval(t *testing.T) {
	opened(t, func(b *bench, d *fullDisk) {
		b.call("box_create_session", specOf("s", object{"persistent": true}))
		d.full.Store(true)
		b.refused(protocol.BoxError, "box_delete_session", object{"session_id": "s"})
		d.full.Store(false)
		time.Sleep(time.Hour)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := b.try(ctx, &at, "box_get_session", object{"session_id": "s"}); err != nil {
			t.Errorf("get: %v", err)
		}
		if _, err := b.try(ctx, &at, "box_delete_session", object{"session_id": "s"}); err != nil {
			t.Errorf("delete: %v", err)
		}
		if _, err := b.try(ctx, &at, "box_exec", specOf("s", object{"persistent": true, "cmd": "true"})); err != nil {
			t.Errorf("exec: %v", err)
		}
	})
}

func TestRefusedRemovalAtGeneration(t *testing.T) {
	opened(t, func(b *bench, d *fullDisk) {
		b.call("box_create_session", specOf("s", object{"persistent": true}))
		d.full.Store(true)
		next := at
		next.Generation = 2
		b.refusedAt(next, protocol.BoxError, "box_status", object{})
		d.full.Store(false)
		time.Sleep(time.Hour)
		done := make(chan error, 1)
		go func() { _, err := b.try(context.Background(), &next, "box_status", object{}); done <- err }()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Hour):
			t.Error("a status hangs for an hour")
		}
	})
}

// A removal that keeps failing does not delay the end of other grants.
func TestSweepStuck(t *testing.T) {
	cloud(t, func(b *bench, _ *prober) {
		other := at
		other.Workspace = "v"
		for _, c := range []protocol.Context{at, other} {
			d := time.Minute
			if c == other {
				d = 3 * time.Minute
			}
			b.callAt(c, upsert, grant(c, 1, d))
			b.callAt(c, "box_exec", cmd("global", "true"))
		}
		bad, _ := b.server.sessions.Get(b.server.boxes[at.Runtime()+"-global"].key)
		b.host.SetHook(func(_ context.Context, op, box string) error {
			if op == "remove" && box == bad.Box {
				return errors.New("device or resource busy")
			}
			return nil
		})
		time.Sleep(3*time.Minute + 30*time.Second)
		b.server.mu.Lock()
		left := b.server.boxes[other.Runtime()+"-global"]
		b.server.mu.Unlock()
		if left != nil {
			t.Errorf("30 s after the end of its grant the session of another workspace is there, state %d", left.state)
		}
		b.host.SetHook(nil)
	})
}
