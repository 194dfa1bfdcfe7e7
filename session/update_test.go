package session

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

func TestUpdate(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{})
	up := spec.Update{Attach: []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}, LiveWishes: spec.LiveWishes{IdleTTL: ptr(spec.Duration(time.Minute)), CPUs: ptr(2.0), Memory: ptr(spec.Size(1 << 30)), PIDs: ptr(int64(200)), MaxLifetime: ptr(spec.Duration(time.Hour))}}
	got, err := b.Update(ctx, me, keyA, up)
	if err != nil {
		t.Fatal(err)
	}
	check := func(v View) {
		t.Helper()
		r := v.Resolved
		if r.IdleTTL.D() != time.Minute || r.CPUs != 2 || r.Memory != 1<<30 || r.PIDs != 200 ||
			r.MaxLifetime.D() != time.Hour || len(r.Mounts) != 2 {
			t.Errorf("%+v", r)
		}
		if spec := b.host.Box(v.Box).Spec(); spec.Limits.Memory != 1<<30 || len(spec.Mounts) != 2 {
			t.Errorf("box %+v", spec)
		}
		if use, _ := b.Quota("t"); use.Memory != 1<<30 || use.CPUs != 2 || use.Sessions != 1 {
			t.Errorf("in use: %+v", use)
		}
	}
	check(got)
	b.restart()
	check(b.get(keyA))
	if _, err := b.Update(ctx, me, keyA, spec.Update{Detach: []string{"/x"}, LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(64 << 20))}}); err != nil {
		t.Fatal(err)
	}
	if use, _ := b.Quota("t"); use.Memory != 64<<20 {
		t.Errorf("in use: %+v", use)
	}
	if !b.audit.has("update", audit.Done) || !b.audit.has("mount", audit.Allow) {
		t.Error("the audit log lacks something")
	}
	if b.get(keyA).Box != v.Box {
		t.Error("another box")
	}
}

func TestUpdateRefusals(t *testing.T) {
	b := newBench(t)
	b.policy.TenantDefaults.Memory = 1 << 30
	b.start()
	if _, err := b.Update(ctx, me, keyA, spec.Update{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
	b.ensure(keyA, policy.Request{})
	for name, tc := range map[string]struct {
		u    spec.Update
		want error
	}{
		"unknown mount":          {spec.Update{Detach: []string{"/x"}}, engine.ErrInvalid},
		"the workspace":          {spec.Update{Detach: []string{"/workspace"}}, engine.ErrInvalid},
		"not allowed":            {spec.Update{Attach: []spec.MountWish{{Source: "/etc", Target: "/x"}}}, policy.ErrDenied},
		"twice":                  {spec.Update{Attach: []spec.MountWish{{Source: "/srv/data/a", Target: "/x"}, {Source: "/srv/data/b", Target: "/x"}}}, engine.ErrInvalid},
		"over the quota":         {spec.Update{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(2 << 30))}}, policy.ErrQuota},
		"too little":             {spec.Update{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(1))}}, engine.ErrInvalid},
		"network, and sensitive": {spec.Update{LiveWishes: spec.LiveWishes{Network: ptr(true), Sensitive: ptr(true)}}, policy.ErrDenied},
	} {
		if _, err := b.Update(ctx, me, keyA, tc.u); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	if r := b.get(keyA).Resolved; len(r.Mounts) != 1 || r.Memory != 512<<20 {
		t.Errorf("something was changed: %+v", r)
	}
	if use, _ := b.Quota("t"); use.Memory != 512<<20 {
		t.Errorf("in use: %+v", use)
	}
}

func TestNetworkRatchet(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Network: ptr(true)}}})
	v, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Network: ptr(false)}})
	if err != nil || v.Resolved.Network {
		t.Fatalf("off: %v, %v", v.Resolved.Network, err)
	}
	if _, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Network: ptr(true)}}); !errors.Is(err, policy.ErrDenied) {
		t.Errorf("on again: %v", err)
	}
	if _, err := b.Ensure(ctx, me, keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Network: ptr(true)}}}); !errors.Is(err, ErrConflict) {
		t.Errorf("asking for it: %v", err)
	}
	b.restart()
	if b.get(keyA).Resolved.Network {
		t.Error("a restart gave it back")
	}
	b.host.Kill(b.get(keyA).Box)
	if v := b.ensure(keyA, policy.Request{}); v.Resolved.Network || !v.Recreated {
		t.Errorf("a new box gave it back: %+v", v)
	}
}

// A change that cannot be recorded is undone.
func TestUpdateIsUndone(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{})
	mend := b.breakStore()
	_, err := b.Update(ctx, me, keyA, spec.Update{Attach: []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}, LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(1 << 30))}})
	if !errors.Is(err, ErrStorage) {
		t.Errorf("error %v", err)
	}
	spec := b.host.Box(v.Box).Spec()
	if len(spec.Mounts) != 1 || spec.Limits.Memory != 512<<20 || len(b.get(keyA).Resolved.Mounts) != 1 {
		t.Errorf("it stays changed: %+v", spec)
	}
	mend()
}

func TestUpdateOfALifetime(t *testing.T) {
	bubble(t, func(b *bench) {
		b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}})
		time.Sleep(10 * time.Minute)
		for _, tc := range []struct{ life, left time.Duration }{{time.Hour, 50 * time.Minute}, {30 * time.Minute, 20 * time.Minute}, {0, 0}, {20 * time.Minute, 10 * time.Minute}} {
			v, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{MaxLifetime: ptr(spec.Duration(tc.life))}})
			if err != nil {
				t.Fatal(err)
			}
			v = b.get(keyA)
			if left := time.Until(v.ExpiresAt); tc.life == 0 != v.ExpiresAt.IsZero() || tc.life > 0 && (left-tc.left).Abs() > time.Second {
				t.Errorf("%v: %v left, want %v", tc.life, left, tc.left)
			}
		}
		time.Sleep(10*time.Minute + time.Second)
		if !b.gone(keyA) {
			t.Error("it outlived its lifetime")
		}
	})
}

// If its caller disappears during a change, box and session still agree; otherwise the
// mount could be neither attached nor detached any more.
func TestUpdateWithoutItsCaller(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{})
	ctx, cancel := context.WithCancel(ctx)
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "updated" {
			cancel()
		}
		return nil
	})
	b.Update(ctx, me, keyA, spec.Update{Attach: []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}, LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(1 << 30))}})
	box, r := b.host.Box(v.Box).Spec(), b.get(keyA).Resolved.Spec()
	if !slices.Equal(box.Mounts, r.Mounts) || box.Limits.Memory != r.Limits.Memory {
		t.Errorf("box %+v, session %+v", box, r)
	}
	if use, _ := b.Quota("t"); int64(use.Memory) != box.Limits.Memory {
		t.Errorf("in use: %+v", use)
	}
}

// A session can give things up, and go on living, also when its profile is gone.
func TestUpdateWithoutItsProfile(t *testing.T) {
	b := newBench(t)
	b.policy.Profiles = map[string]policy.ProfileConfig{"old": {Extends: "network_basic", Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{CPUs: ptr(3.0)}}}}
	b.start()
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Profile: "old", Mounts: []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}}})
	b.Close(ctx, false)
	b.policy.Profiles, b.policy.NetworkAvailable = nil, false
	b.start()
	v, err := b.Update(ctx, me, keyA, spec.Update{Detach: []string{"/x"}, LiveWishes: spec.LiveWishes{Network: ptr(false)}})
	if err != nil || len(v.Resolved.Mounts) != 1 || v.Resolved.Network || v.Resolved.CPUs != 3 {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{CPUs: ptr(1.0)}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a limit by a profile that is gone: %v", err)
	}
}

// A change that fails may have taken mounts away; the session knows, also after a restart,
// and gets them back with the next use that asks for them.
func TestFailedChangeOfMounts(t *testing.T) {
	for _, restart := range []bool{false, true} {
		b := open(t)
		at := func(source string) policy.Request {
			return policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: source, Target: "/x"}}}}
		}
		v := b.ensure(keyA, at("/srv/data/x"))
		b.host.SetHook(func(_ context.Context, op, box string) error {
			if op == "update" {
				must(t, b.host.Box(box).Change(engine.Change{Detach: []string{"/x"}}))
				return errors.New("no such source")
			}
			return nil
		})
		if _, err := b.Ensure(ctx, me, keyA, at("/srv/data/y")); err == nil {
			t.Fatal("changed")
		}
		b.host.SetHook(nil)
		if restart {
			b.restart()
		}
		for _, source := range []string{"/srv/data/x", "/srv/data/y"} {
			if got := b.ensure(keyA, at(source)); got.Box != v.Box || !slices.Equal(b.host.Box(v.Box).Spec().Mounts, got.Resolved.Mounts) {
				t.Errorf("%s: session %+v, box %+v", source, got.Resolved.Mounts, b.host.Box(v.Box).Spec().Mounts)
			}
		}
		b.Close(ctx, false)
	}
}
