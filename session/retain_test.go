package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

func retaining(text string) policy.Request {
	return policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Retain: &text}}}
}

// expired waits until the TTL has ended the session of key.
func (b *bench) expired(key Key) {
	b.t.Helper()
	for range 1000 {
		if v, err := b.Get(key); err == nil && v.State == Stopped {
			return
		}
		time.Sleep(time.Second)
	}
	b.t.Fatal("the session does not end")
}

func TestRetain(t *testing.T) {
	bubble(t, func(b *bench) {
		b.createVolume("data", 8*mib)
		r := retaining("1h")
		r.Volumes = []spec.VolumeWish{dataAt("/data", false)}
		b.ensure(keyA, r)
		file := filepath.Join(b.workspace(keyA), "file")
		must(t, os.WriteFile(file, nil, 0o600))
		for range 2 { // it can be revived, and ends again
			b.expired(keyA)
			v := b.get(keyA)
			if left := time.Until(v.ExpiresAt); v.Reason == "" || v.Box != "" || left < 50*time.Minute || left > time.Hour {
				t.Errorf("%+v, %v left", v, left)
			}
			use, _ := b.Quota("t")
			if use.Sessions != 1 || use.Memory != 0 || use.CPUs != 0 || len(b.host.IDs()) != 0 {
				t.Errorf("in use: %+v, boxes %v", use, b.host.IDs())
			}
			b.wantHolders()
			b.restart()
			if use, _ := b.Quota("t"); use.Sessions != 1 || use.Memory != 0 {
				t.Errorf("in use after a restart: %+v", use)
			}
			b.wantHolders()
			if r := b.exec(keyA, "true"); !r.Session.Recreated || r.Session.State != Running {
				t.Errorf("%+v", r.Session)
			}
			b.wantHolders("a:rw")
			if use, _ := b.Quota("t"); use.Sessions != 1 || use.Memory != 512*mib || use.CPUs != 1 {
				t.Errorf("in use again: %+v", use)
			}
		}
		b.expired(keyA)
		time.Sleep(30 * time.Minute)
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
		time.Sleep(31 * time.Minute)
		for !b.gone(keyA) {
			time.Sleep(time.Second)
		}
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the time: %v", err)
		}
		if use, _ := b.Quota("t"); use.Sessions != 0 || use.Memory != 0 {
			t.Errorf("left in use: %+v", use)
		}
	})
}

func TestRetainForeverAndRemove(t *testing.T) {
	bubble(t, func(b *bench) {
		r := retaining("forever")
		r.MaxLifetime = ptr(spec.Duration(time.Hour))
		b.ensure(keyA, r)
		b.ensure(keyB, retaining("none"))
		time.Sleep(299 * time.Second)
		for !b.gone(keyB) {
			time.Sleep(time.Second)
		}
		b.expired(keyA)
		time.Sleep(365 * 24 * time.Hour)
		if v := b.get(keyA); v.State != Stopped || !v.ExpiresAt.IsZero() {
			t.Errorf("%+v", v)
		}
		v := b.ensure(keyA, r) // its lifetime begins anew
		if left := time.Until(v.ExpiresAt); !v.Recreated || left < 4*time.Minute || time.Since(v.CreatedAt) > time.Minute {
			t.Errorf("%+v", v)
		}
		b.restart()
		b.exec(keyA, "true")
		b.expired(keyA)
		must(t, b.Remove(ctx, me, keyA))
		if _, err := os.Stat(b.workspace(keyA)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after its removal: %v", err)
		}
	})
}

// A session that cannot be revived stays for its workspace.
func TestRetainRefusedRevival(t *testing.T) {
	bubble(t, func(b *bench) {
		b.createVolume("data", 8*mib)
		r := retaining("1h")
		r.Volumes = []spec.VolumeWish{dataAt("/data", false)}
		b.ensure(keyA, r)
		b.expired(keyA)
		b.ensure(keyB, withVolumes(dataAt("/data", false)))
		if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); !errors.Is(err, ErrVolumeInUse) {
			t.Errorf("its volume is elsewhere: %v", err)
		}
		b.wantHolders("b:rw")
		if v := b.get(keyA); v.State != Stopped || v.ExpiresAt.IsZero() {
			t.Errorf("%+v", v)
		}
		if use, _ := b.Quota("t"); use.Sessions != 2 || use.Memory != 512*mib {
			t.Errorf("in use: %+v", use)
		}
		b.restart()
		if v := b.get(keyA); v.State != Stopped {
			t.Errorf("%+v", v)
		}
		must(t, b.Remove(ctx, me, keyB))
		must(t, b.RemoveVolume(ctx, me, "t", "data"))
		r.Volumes = []spec.VolumeWish{}
		if v := b.ensure(keyA, r); !v.Recreated || len(v.Volumes) != 0 {
			t.Errorf("%+v", v)
		}
	})
}

// boxd ends after the TTL, and before the box is gone; or a removal is under way, and the TTL
// must not turn it into something else.
func TestRetainCrash(t *testing.T) {
	for _, c := range []struct {
		name  string
		keeps *retention
	}{{"retained", &retention{Until: time.Now().Add(time.Hour)}}, {"removed", nil}} {
		t.Run(c.name, func(t *testing.T) {
			b := open(t)
			b.ensure(keyA, retaining("1h"))
			file := filepath.Join(b.workspace(keyA), "file")
			must(t, os.WriteFile(file, nil, 0o600))
			b.crash()
			b.rewrite(keyA, func(r *sessionRecord) { r.State, r.Reason, r.Retained = Stopping, "idle", c.keeps })
			b.start()
			b.eventually("its end", func() bool { v, err := b.Get(keyA); return err != nil || v.State == Stopped })
			_, err := os.Stat(file)
			if _, lost := b.Get(keyA); (err == nil) != (c.keeps != nil) || (lost == nil) != (c.keeps != nil) {
				t.Errorf("file %v, session %v", err, lost)
			}
		})
	}
}

// A daemon that is stopped keeps what a TTL would keep.
func TestRetainStop(t *testing.T) {
	b := open(t)
	b.ensure(keyA, retaining("1h"))
	b.ensure(keyB, policy.Request{})
	must(t, b.Manager.Close(ctx, true))
	b.start()
	if v := b.get(keyA); v.State != Stopped || b.exec(keyA, "true").Session.Generation != 2 {
		t.Errorf("%+v", v)
	}
	if _, err := b.Get(keyB); !errors.Is(err, ErrNotFound) {
		t.Errorf("the other one: %v", err)
	}
	if _, err := b.Ensure(ctx, me, keyB, retaining("7 days")); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
}

// A retained session whose revival failed in the engine is still one, also for a daemon that stops.
func TestRetainFailedRevival(t *testing.T) {
	bubble(t, func(b *bench) {
		b.ensure(keyA, retaining("forever"))
		kept := filepath.Join(b.workspace(keyA), "kept")
		must(t, os.WriteFile(kept, nil, 0o600))
		b.expired(keyA)
		b.host.SetHook(func(_ context.Context, what, _ string) error {
			if what == "create" {
				return errors.New("out of memory")
			}
			return nil
		})
		if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); err == nil {
			t.Error("it was revived")
		}
		if v := b.get(keyA); v.State != Stopped {
			t.Errorf("%+v", v)
		}
		must(t, b.Close(ctx, true))
		if _, err := os.Stat(kept); err != nil {
			t.Error(err)
		}
		b.host.SetHook(nil)
		b.start()
		if res := b.exec(keyA, "true"); res.ExitCode != 0 {
			t.Errorf("%+v", res)
		}
	})
}

// A client that removes a session while its TTL retains it has it removed, although the client does
// not wait.
func TestRetainThenRemove(t *testing.T) {
	bubble(t, func(b *bench) {
		b.ensure(keyA, retaining("forever"))
		hung := make(chan struct{})
		b.host.SetHook(func(_ context.Context, what, _ string) error {
			if what == "remove" {
				<-hung
			}
			return nil
		})
		time.Sleep(b.get(keyA).Resolved.IdleTTL.D() + time.Second)
		synctest.Wait() // the TTL is ending it
		gone, cancel := context.WithCancel(ctx)
		cancel()
		if err := b.Remove(gone, me, keyA); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		b.host.SetHook(nil)
		close(hung)
		b.eventually("the end of the session", func() bool { return b.gone(keyA) })
		if _, err := os.Stat(b.workspace(keyA)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its workspace: %v", err)
		}
	})
}

// The name of a volume that was removed meanwhile is told as the tenant knows it.
func TestRetainedVolumeIsRemoved(t *testing.T) {
	bubble(t, func(b *bench) {
		b.createVolume("data", 8*mib)
		r := retaining("1h")
		r.Volumes = []spec.VolumeWish{dataAt("/data", false)}
		b.ensure(keyA, r)
		b.expired(keyA)
		must(t, b.RemoveVolume(ctx, me, "t", "data"))
		_, err := b.Ensure(ctx, me, keyA, policy.Request{})
		if bad, ok := errors.AsType[*engine.FieldError](err); !ok || bad.Error() != "volume at /data: was removed meanwhile: create it, or leave it out" {
			t.Errorf("%v", err)
		}
	})
}
