package langbot

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/boxd/boxd/langbot/protocol"
)

// TestGenerations: a newer generation ends the sessions and the actions of the older one.
func TestGenerations(t *testing.T) {
	bubble(t, func(b *bench) {
		other := at
		other.Workspace = "v"
		b.callAt(other, "box_create_session", specOf("s", nil))
		b.call("box_create_session", specOf("s", object{"persistent": true}))
		b.call("box_start_managed_process", proc("s", "p", "serve"))
		done := make(chan error, 1)
		go func() {
			_, err := b.try(context.Background(), &at, "box_exec", specOf("s", object{"cmd": "wait", "persistent": true}))
			done <- err
		}()
		synctest.Wait()
		next := at
		next.Generation = 3
		if st := b.callAt(next, "box_status", object{}); st["active_sessions"] != 0.0 || st["managed_processes"] != 0.0 {
			t.Errorf("%v", st)
		}
		if err := <-done; err == nil || !strings.HasSuffix(err.Error(), "Stale Box placement generation") {
			t.Errorf("the command of the older generation: %v", err)
		}
		if ids := b.host.IDs(); len(ids) != 1 {
			t.Errorf("boxes %q, want that of the other workspace", ids)
		}
		for _, action := range []string{"box_status", "box_get_sessions"} {
			if text := b.refused(protocol.PermissionError, action, object{}); text != "Stale Box placement generation" {
				t.Errorf("%q", text)
			}
		}
		b.callAt(next, "box_create_session", specOf("s", object{"cpus": 2}))
		b.restart()
		b.refused(protocol.PermissionError, "box_exec", cmd("s", "true"))
		if g, ok := b.server.Current("i", "w"); !ok || g != 3 {
			t.Errorf("%d, %v", g, ok)
		}
	})
}

// TestAdvanceInterrupted: the daemon dies after the generation advanced, and before the sessions of
// the older one are gone.
func TestAdvanceInterrupted(t *testing.T) {
	bubble(t, func(b *bench) {
		b.call("box_create_session", specOf("s", object{"persistent": true}))
		ctx, cancel := context.WithCancel(context.Background())
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "remove" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		next := at
		next.Generation = 2
		answered := make(chan error, 1)
		go func() {
			_, err := b.try(ctx, &next, "box_status", object{})
			answered <- err
		}()
		synctest.Wait()
		cancel()
		<-answered
		b.host.SetHook(nil)
		b.restart()
		synctest.Wait() // without any request
		if ids := b.host.IDs(); len(ids) != 0 {
			t.Errorf("boxes %q of the older generation", ids)
		}
		b.callAt(next, "box_status", object{})
	})
}
