package session

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// bubble runs fn with an open manager and a clock of its own.
func bubble(t *testing.T, fn func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t)
		fn(b)
		b.Close(ctx, false)
	})
}

// gone waits until nothing happens any more and says whether the session is gone.
func (b *bench) gone(key Key) bool {
	synctest.Wait()
	_, err := b.Get(key)
	return err != nil
}

func TestIdleTTL(t *testing.T) {
	bubble(t, func(b *bench) {
		b.ensure(keyA, policy.Request{})
		v := b.get(keyA)
		if want := time.Now().Add(policy.DefaultIdleTTL).Round(0); !v.ExpiresAt.Equal(want) {
			t.Errorf("expires at %v, want %v", v.ExpiresAt, want)
		}
		time.Sleep(299 * time.Second)
		b.exec(keyA, "true") // counts
		time.Sleep(299 * time.Second)
		if b.gone(keyA) {
			t.Fatal("a command did not count as use")
		}
		b.Get(keyA) // do not count
		b.List("")
		b.Processes(keyA)
		b.Peek(keyA)
		time.Sleep(time.Second + time.Millisecond)
		if !b.gone(keyA) {
			t.Error("it did not expire")
		}
		if st := b.Stats(); st.Expired != 1 || len(b.host.IDs()) != 0 {
			t.Errorf("stats %+v, boxes %v", st, b.host.IDs())
		}
	})
}

func TestIdleTTLOfMany(t *testing.T) {
	bubble(t, func(b *bench) {
		for i, id := range []string{"c", "a", "d", "b"} {
			ttl := spec.Duration(time.Duration(10*(i+1)) * time.Second)
			b.ensure(Key{"t", id}, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: &ttl}}})
		}
		for left := 3; left >= 0; left-- {
			time.Sleep(10*time.Second + time.Millisecond)
			synctest.Wait()
			if n := len(b.List("")); n != left {
				t.Errorf("%d sessions, want %d", n, left)
			}
		}
	})
}

func TestRunningCommandIsUse(t *testing.T) {
	bubble(t, func(b *bench) {
		ttl := spec.Duration(10 * time.Second)
		b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: &ttl}}})
		res, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"wait"}, Timeout: time.Minute})
		if err != nil || res.Verdict != engine.TimedOut {
			t.Errorf("%+v, %v", res, err)
		}
		time.Sleep(9 * time.Second)
		if b.gone(keyA) {
			t.Error("the end of a command did not count as use")
		}
		time.Sleep(2 * time.Second)
		if !b.gone(keyA) {
			t.Error("it did not expire")
		}
	})
}

func TestRunningProcessExempts(t *testing.T) {
	bubble(t, func(b *bench) {
		p := b.launch(keyA, "p", "serve")
		time.Sleep(time.Hour)
		if b.gone(keyA) {
			t.Fatal("it expired under its process")
		}
		if v := b.get(keyA); !v.ExpiresAt.IsZero() {
			t.Errorf("expires at %v", v.ExpiresAt)
		}
		if err := p.Stop(ctx, me, StopOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(299 * time.Second)
		if b.gone(keyA) {
			t.Fatal("the end of a process did not count as use")
		}
		p.Touch() // as a relay does that reads the rest
		time.Sleep(299 * time.Second)
		if b.gone(keyA) {
			t.Fatal("relay traffic did not count as use")
		}
		time.Sleep(2 * time.Second)
		if !b.gone(keyA) {
			t.Error("it did not expire")
		}
	})
}

func TestPersistent(t *testing.T) {
	bubble(t, func(b *bench) {
		b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}})
		time.Sleep(24 * time.Hour)
		if b.gone(keyA) {
			t.Fatal("a persistent session expired")
		}
		if _, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Persistent: ptr(false), IdleTTL: ptr(spec.Duration(time.Minute))}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Second)
		if !b.gone(keyA) {
			t.Error("it did not expire")
		}
	})
}

func TestMaxLifetime(t *testing.T) {
	bubble(t, func(b *bench) {
		life := spec.Duration(time.Hour)
		b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{MaxLifetime: &life, Persistent: ptr(true)}}})
		p := b.launch(keyA, "p", "stubborn")
		time.Sleep(59 * time.Minute)
		b.exec(keyA, "true")
		if b.gone(keyA) {
			t.Fatal("it ended too early")
		}
		time.Sleep(time.Minute + time.Millisecond)
		if !b.gone(keyA) || !isDone(p.Done()) {
			t.Error("it outlived its lifetime")
		}
	})
}

func TestShorterTTLCountsAtOnce(t *testing.T) {
	bubble(t, func(b *bench) {
		b.ensure(keyA, policy.Request{})
		if _, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{IdleTTL: ptr(spec.Duration(10 * time.Second))}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		if !b.gone(keyA) {
			t.Error("it did not expire")
		}
	})
}

func TestFailedSessionExpires(t *testing.T) {
	bubble(t, func(b *bench) {
		v := b.ensure(keyA, policy.Request{})
		b.host.Kill(v.Box)
		time.Sleep(301 * time.Second)
		if !b.gone(keyA) {
			t.Error("it did not expire")
		}
	})
}

func TestLifetimeOverRestarts(t *testing.T) {
	bubble(t, func(b *bench) {
		life := spec.Duration(time.Hour)
		b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{MaxLifetime: &life, Persistent: ptr(true)}}})
		time.Sleep(40 * time.Minute)
		b.Close(ctx, false)
		time.Sleep(10 * time.Minute)
		b.start()
		time.Sleep(9 * time.Minute)
		if b.gone(keyA) {
			t.Fatal("it ended too early")
		}
		time.Sleep(61 * time.Second)
		if !b.gone(keyA) {
			t.Error("it outlived its lifetime")
		}
	})
}

// A clock that was set back cannot extend the lifetime that was left.
func TestLifetimeAndAClockSetBack(t *testing.T) {
	bubble(t, func(b *bench) {
		life := spec.Duration(time.Hour)
		b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{MaxLifetime: &life, Persistent: ptr(true)}}})
		time.Sleep(50 * time.Minute)
		b.Close(ctx, false)
		b.rewrite(keyA, func(r *sessionRecord) { r.CreatedAt = r.CreatedAt.Add(50 * time.Minute) })
		b.start()
		time.Sleep(10*time.Minute + time.Second)
		if !b.gone(keyA) {
			t.Error("the step gave it more time")
		}
	})
}

// A command longer than the idle TTL does not switch the idle TTL off.
func TestIdleTTLAfterALongCommand(t *testing.T) {
	bubble(t, func(b *bench) {
		b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: ptr(spec.Duration(10 * time.Second)), MaxLifetime: ptr(spec.Duration(time.Hour))}}})
		if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"wait"}, Timeout: 20 * time.Second}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		if !b.gone(keyA) {
			t.Error("it did not expire")
		}
	})
}

// Sessions that cannot be removed do not keep others from expiring.
func TestExpiryBesideStuckOnes(t *testing.T) {
	bubble(t, func(b *bench) {
		for i := range parallel {
			b.ensure(Key{"t", fmt.Sprint("stuck", i)}, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20), LiveWishes: spec.LiveWishes{IdleTTL: ptr(spec.Duration(10 * time.Second))}}})
		}
		b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: ptr(spec.Duration(20 * time.Second))}}})
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "remove-volume" {
				return errors.New("busy")
			}
			return nil
		})
		time.Sleep(10 * time.Minute)
		if !b.gone(keyA) {
			t.Errorf("%+v", b.get(keyA).State)
		}
	})
}

// An idle TTL that is made shorter while a command runs counts from its end.
func TestShorterTTLWhileUsed(t *testing.T) {
	bubble(t, func(b *bench) {
		b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: ptr(spec.Duration(time.Hour))}}})
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"wait"}, Timeout: 20 * time.Second})
		}()
		time.Sleep(time.Second)
		if _, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{IdleTTL: ptr(spec.Duration(10 * time.Second))}}); err != nil {
			t.Fatal(err)
		}
		<-done
		time.Sleep(11 * time.Second)
		if !b.gone(keyA) {
			t.Error("it did not expire")
		}
	})
}
