package session

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

func (b *bench) setPaused(key Key, pause bool) View {
	b.t.Helper()
	change := b.Resume
	if pause {
		change = b.Pause
	}
	v, err := change(ctx, me, key)
	if err != nil || v.PausedAt.IsZero() == pause {
		b.t.Fatalf("paused at %v, %v", v.PausedAt, err)
	}
	return v
}

// A paused session refuses use with one line that says what to do, and is changed and removed as always.
func TestPause(t *testing.T) {
	b := open(t)
	if _, err := b.Pause(ctx, me, keyA); !errors.Is(err, ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
	v := b.ensure(keyA, policy.Request{})
	p := b.launch(keyA, "p", "serve")
	b.setPaused(keyA, true)
	at := b.setPaused(keyA, true).PausedAt
	box := b.host.Box(v.Box)
	if !box.Paused() || b.audit.count("pause", "allow") != 1 || b.Stats().Paused != 1 {
		t.Errorf("box paused: %v, audited %d times", box.Paused(), b.audit.count("pause", "allow"))
	}
	_, execErr := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}})
	_, startErr := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "q", Args: []string{"serve"}})
	_, _, accessErr := b.Access(ctx, me, keyA, nil, Access{Action: "file-read", Path: "x"})
	_, _, lookErr := b.Look(ctx, me, keyA, Access{Action: "file-read", Path: "x"})
	for what, err := range map[string]error{"exec": execErr, "start": startErr, "access": accessErr, "look": lookErr} {
		if !errors.Is(err, engine.ErrPaused) || !strings.Contains(err.Error(), `boxd resume "a"`) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := b.ensure(keyA, policy.Request{}); !got.PausedAt.Equal(at) || got.Box != v.Box {
		t.Errorf("ensure: %+v", got)
	}
	memory := spec.Size(64 << 20)
	if _, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Memory: &memory}}); err != nil || box.Spec().Limits.Memory != 64<<20 {
		t.Errorf("update: %v", err)
	}
	if err := p.Stop(ctx, me, StopOptions{}); err != nil {
		t.Errorf("stop: %v", err)
	}
	b.setPaused(keyA, false)
	b.setPaused(keyA, false)
	b.exec(keyA, "true")
	if b.audit.count("resume", "allow") != 2 || box.Paused() {
		t.Errorf("audited %d times, box paused: %v", b.audit.count("resume", "allow"), box.Paused())
	}
	b.setPaused(keyA, true)
	if err := b.Remove(ctx, me, keyA); err != nil {
		t.Error(err)
	}
	if v := b.ensure(keyA, policy.Request{}); !v.PausedAt.IsZero() {
		t.Error("the next session is paused")
	}
	b.exec(keyA, "true")
}

// A box that a failed request has paused runs again, and resume never answers for it.
func TestFailedPause(t *testing.T) {
	b := open(t)
	box := b.host.Box(b.ensure(keyA, policy.Request{}).Box)
	var resumes atomic.Int32
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		switch {
		case op == "paused": // the box is, and nobody learns of it
			return engine.ErrNoLauncher
		case op == "resume" && resumes.Add(1) == 1:
			return engine.ErrNoLauncher
		}
		return nil
	})
	if _, err := b.Pause(ctx, me, keyA); !errors.Is(err, engine.ErrNoLauncher) || !b.get(keyA).PausedAt.IsZero() {
		t.Fatalf("%v", err)
	}
	b.eventually("the box to run", func() bool { return !box.Paused() })
	box.SetPaused(true)
	b.setPaused(keyA, false)
	if box.Paused() {
		t.Error("resume has not asked the box")
	}
	b.exec(keyA, "true")
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "resume" {
			return engine.ErrNoLauncher
		}
		return nil
	})
	if _, err := b.Resume(ctx, me, keyA); !errors.Is(err, engine.ErrNoLauncher) {
		t.Errorf("resume without an answer of the box: %v", err)
	}
}

// Use resumes a session that says so, once, however many ask.
func TestAutoResume(t *testing.T) {
	b := open(t)
	auto := true
	v := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{AutoResume: &auto}}})
	for range 3 {
		b.setPaused(keyA, true)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if res, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); err != nil || res.ExitCode != 0 {
					t.Errorf("%+v, %v", res, err)
				}
			})
		}
		all.Wait()
		if b.host.Box(v.Box).Paused() || !b.get(keyA).PausedAt.IsZero() {
			t.Error("still paused")
		}
	}
	if n := b.audit.count("resume", "allow"); n != 3 {
		t.Errorf("resumed %d times", n)
	}
	b.setPaused(keyA, true)
	b.launch(keyA, "p", "serve")
	b.setPaused(keyA, true)
	if _, release, err := b.Access(ctx, me, keyA, nil, Access{Action: "file-read", Path: "x"}); err != nil {
		t.Error(err)
	} else {
		release()
	}
	b.setPaused(keyA, true)
	if _, _, err := b.Look(ctx, me, keyA, Access{Action: "file-read", Path: "x"}); !errors.Is(err, engine.ErrPaused) {
		t.Errorf("to look resumes: %v", err)
	}
}

// What is refused resumes nothing, and a pause between admission and start does not fail a use that resumes.
func TestAutoResumeAfterAdmission(t *testing.T) {
	b := newBench(t)
	b.policy.Tenants = map[string]policy.Tenant{"t": {Daily: policy.Budget{Execs: 2}}}
	b.start()
	auto := true
	r := policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{AutoResume: &auto}}}
	box := b.host.Box(b.ensure(keyA, r).Box)
	b.launch(keyA, "p", "serve")
	b.setPaused(keyA, true)
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}}); !errors.Is(err, ErrExists) || !box.Paused() {
		t.Errorf("a process that is there: %v, paused: %v", err, box.Paused())
	}
	b.setPaused(keyA, false)
	for _, op := range []string{"start", "launch"} { // paused as one starts
		b.host.SetHook(func(ctx context.Context, at, _ string) error {
			if at == op {
				b.host.SetHook(nil)
				_, err := b.Pause(ctx, me, keyA)
				return err
			}
			return nil
		})
		if op == "start" {
			b.exec(keyA, "true")
		} else {
			b.launch(keyA, "q", "serve")
		}
		if box.Paused() || b.audit.count("resume", "failed") != 0 {
			t.Errorf("%s: paused: %v", op, box.Paused())
		}
	}
	b.setPaused(keyA, true)
	if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); err != nil || box.Paused() {
		t.Errorf("the second command: %v", err)
	}
	b.setPaused(keyA, true)
	_, execErr := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}})
	_, startErr := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "r", Args: []string{"serve"}})
	for what, err := range map[string]error{"exec": execErr, "start": startErr} {
		if !errors.Is(err, policy.ErrQuota) || !box.Paused() {
			t.Errorf("%s over budget: %v, paused: %v", what, err, box.Paused())
		}
	}
}

// Idle time stands still during a pause, the lifetime does not.
func TestPausedTTL(t *testing.T) {
	bubble(t, func(b *bench) {
		idle, life := spec.Duration(10*time.Second), spec.Duration(time.Hour)
		b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: &idle}}})
		b.ensure(keyB, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: &idle, MaxLifetime: &life}}})
		time.Sleep(9 * time.Second)
		b.setPaused(keyA, true)
		b.setPaused(keyB, true)
		if v := b.get(keyA); !v.ExpiresAt.IsZero() {
			t.Errorf("a paused session ends at %s", v.ExpiresAt)
		}
		time.Sleep(30 * time.Minute)
		if b.gone(keyA) || b.gone(keyB) {
			t.Fatal("a paused session was idle")
		}
		time.Sleep(31 * time.Minute)
		if b.gone(keyA) || !b.gone(keyB) {
			t.Errorf("a session without a lifetime is gone: %v; one with: %v", b.gone(keyA), b.gone(keyB))
		}
		b.setPaused(keyA, false)
		time.Sleep(9 * time.Second)
		if b.gone(keyA) {
			t.Fatal("the pause counts")
		}
		time.Sleep(2 * time.Second)
		if !b.gone(keyA) {
			t.Error("it did not expire after the pause")
		}
	})
}

// A process has as much time to get ready as it would have without a pause, and its restart waits for the end.
func TestPausedProcesses(t *testing.T) {
	bubble(t, func(b *bench) {
		v := b.ensure(keyA, policy.Request{})
		probed, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}, ProcessSettings: ProcessSettings{Ready: &spec.Ready{Port: 80, Timeout: spec.Duration(10 * time.Second)}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "r", Args: []string{"exit", "1"}, ProcessSettings: ProcessSettings{Restart: "on-failure"}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		b.setPaused(keyA, true)
		time.Sleep(time.Hour)
		synctest.Wait()
		if p, err := b.Process(keyA, "p"); err != nil || p.View().State.Ended() {
			t.Errorf("it was given up during the pause: %+v, %v", p.View(), err)
		}
		if p, err := b.Process(keyA, "r"); err != nil || p.View().Restarts != 0 {
			t.Errorf("restarted in a paused session: %+v, %v", p.View(), err)
		}
		b.setPaused(keyA, false)
		b.host.Box(v.Box).Listen(engine.Port{Protocol: "tcp", Port: 80})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if p, err := b.Process(keyA, probed.ID); err != nil || p.View().State != ProcessReady {
			t.Errorf("%+v, %v", p.View(), err)
		}
		if p, err := b.Process(keyA, "r"); err != nil || p.View().Restarts == 0 {
			t.Errorf("not restarted after the pause: %+v, %v", p.View(), err)
		}
	})
}

// Whatever a crash leaves, the session is as its box is.
func TestPauseSurvives(t *testing.T) {
	for _, first := range []bool{false, true} {
		b := open(t)
		b.engineFirst = first
		v := b.ensure(keyA, policy.Request{})
		at := b.setPaused(keyA, true).PausedAt
		b.restart()
		if got := b.get(keyA); got.Box != v.Box || !got.PausedAt.Equal(at) {
			t.Errorf("after a restart: %+v", got)
		}
		if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); !errors.Is(err, engine.ErrPaused) {
			t.Errorf("after a restart: %v", err)
		}
		b.setPaused(keyA, false)
		b.restart()
		if got := b.get(keyA); got.Box != v.Box || !got.PausedAt.IsZero() {
			t.Errorf("resumed, and after a restart: %+v", got)
		}
		b.exec(keyA, "true")
		// A manager ends between the box and the record.
		for _, pause := range []bool{true, false} {
			b.crash()
			b.host.Box(v.Box).SetPaused(pause)
			b.start()
			if got := b.get(keyA); got.PausedAt.IsZero() == pause {
				t.Errorf("the box is paused: %v, its session since %s", pause, got.PausedAt)
			}
		}
		// The next box runs.
		b.setPaused(keyA, true)
		b.host.Box(v.Box).Die()
		b.exec(keyA, "true")
		if got := b.get(keyA); !got.PausedAt.IsZero() || got.Box == v.Box {
			t.Errorf("the next box: %+v", got)
		}
	}
}

// A pause that gives memory to the host is refused before anything stands still where that cannot be done.
func TestPauseReclaim(t *testing.T) {
	b := open(t)
	if _, err := b.PauseReclaim(ctx, me, keyA); !errors.Is(err, ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
	box := b.host.Box(b.ensure(keyA, policy.Request{}).Box)
	if _, err := b.PauseReclaim(ctx, me, keyA); !errors.Is(err, engine.ErrUnenforceable) || box.Paused() || !b.get(keyA).PausedAt.IsZero() {
		t.Errorf("a host without swap: %v, paused: %v", err, box.Paused())
	}
	box.SetSpare(5)
	for _, want := range []int64{5, 0} { // the second time it is paused already
		v, err := b.PauseReclaim(ctx, me, keyA)
		if err != nil || v.Reclaimed == nil || *v.Reclaimed != want || v.PausedAt.IsZero() || !box.Paused() {
			t.Errorf("want %d bytes: %+v, %v", want, v, err)
		}
	}
	if v, err := b.Pause(ctx, me, keyA); err != nil || v.Reclaimed != nil {
		t.Errorf("a pause without it: %+v, %v", v, err)
	}
	if n := b.audit.count("reclaim", "allow"); n != 3 {
		t.Errorf("audited %d times", n)
	}
	if n := b.audit.count("reclaim", "failed"); n != 1 {
		t.Errorf("%d failures audited", n)
	}
}
