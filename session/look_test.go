package session

import (
	"errors"
	"testing"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/policy"
)

// Looking is bounded and recorded like any access, but is no use.
func TestLook(t *testing.T) {
	b := newBench(t)
	b.policy.TenantDefaults.Execs = 1
	b.start()
	look := Access{Action: "file-read", Path: "/workspace/x"}
	if _, _, err := b.Look(ctx, me, keyA, look); !errors.Is(err, ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
	b.ensure(keyA, policy.Request{})
	before := b.get(keyA)
	time.Sleep(50 * time.Millisecond)
	box, release, err := b.Look(ctx, me, keyA, look)
	if err != nil || box == nil || !b.audit.has("file-read", audit.Allow) {
		t.Fatalf("%v, %v", box, err)
	}
	// The wall clock is computed anew each time.
	if v := b.get(keyA); v.LastUsed.Sub(before.LastUsed).Abs() > 25*time.Millisecond || v.ExpiresAt.Sub(before.ExpiresAt).Abs() > 25*time.Millisecond {
		t.Errorf("looking counts as use: %+v, %+v", before, v)
	}
	if _, _, err := b.Look(ctx, me, keyA, look); !errors.Is(err, policy.ErrQuota) || !b.audit.has("file-read", audit.Deny) {
		t.Errorf("two at once: %v, want a quota", err)
	}
	release()
	b.exec(keyA, "true")
}
