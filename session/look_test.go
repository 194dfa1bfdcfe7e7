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

// Watches are bounded by themselves: they take nothing from the commands of a session, nor the other
// way round.
func TestWatches(t *testing.T) {
	b := newBench(t)
	b.policy.TenantDefaults.Execs, b.policy.TenantDefaults.Watches = 1, MaxWatches+1
	b.start()
	b.ensure(keyA, policy.Request{})
	watch := Access{Action: "file-watch", Path: "/workspace", Watch: true}
	look := func() (func(), error) { _, release, err := b.Look(ctx, me, keyA, watch); return release, err }
	use := func() (func(), error) { _, release, err := b.Access(ctx, me, keyA, nil, watch); return release, err }
	var held []func()
	for i := range MaxWatches {
		open := look
		if i%2 == 0 {
			open = use
		}
		release, err := open()
		if err != nil {
			t.Fatalf("watch %d: %v", i, err)
		}
		held = append(held, release)
	}
	b.exec(keyA, "true")
	for _, open := range []func() (func(), error){look, use} {
		var quota *policy.QuotaError
		if _, err := open(); !errors.As(err, &quota) || quota.Resource != "watches_per_session" || quota.Limit != "8" {
			t.Errorf("one more: %v", err)
		}
	}
	if !b.audit.has("file-watch", audit.Deny) {
		t.Error("the refusal is not in the audit log")
	}
	held[0]()
	held[0]()
	if release, err := look(); err != nil {
		t.Errorf("after one has ended: %v", err)
	} else {
		held[0] = release
	}
	other := Key{Tenant: keyA.Tenant, ID: "other"}
	b.ensure(other, policy.Request{})
	_, release, err := b.Look(ctx, me, other, watch)
	if err != nil {
		t.Fatal(err)
	}
	var quota *policy.QuotaError
	if _, _, err := b.Look(ctx, me, other, watch); !errors.As(err, &quota) || quota.Resource != "watches" || quota.Tenant != keyA.Tenant {
		t.Errorf("beyond the tenant's quota: %v", err)
	}
	for _, release := range append(held, release) {
		release()
	}
	if use, _ := b.Quota(keyA.Tenant); use.Watches != 0 || use.Execs != 0 {
		t.Errorf("left in use: %+v", use)
	}
	if v := b.get(keyA); v.Execs != 0 {
		t.Errorf("%+v", v)
	}
}
