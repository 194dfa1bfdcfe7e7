package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/choose"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// withEngines runs fn with a manager that has these engines in its configuration, and a clock of its own.
// The host has the native engine only.
func withEngines(t *testing.T, order []string, fn func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.policy.Engines = order
		b.policy.Profiles = map[string]policy.ProfileConfig{"last": {Engines: &[]string{order[len(order)-1]}}}
		if slices.Contains(order, spec.EngineOCI) && len(order) > 1 {
			b.policy.Profiles["hard"] = policy.ProfileConfig{Wishes: spec.Wishes{Isolation: ptr(spec.IsolationGVisor)}}
			b.policy.Profiles["soft"] = policy.ProfileConfig{Wishes: spec.Wishes{Isolation: ptr(spec.IsolationGVisor), Require: ptr(false)}}
		}
		b.start()
		fn(b)
		b.Close(ctx, false)
	})
}

func profile(name string) policy.Request {
	return policy.Request{Wishes: spec.Wishes{Profile: name}}
}

// built checks with what the box of a session was built: in the view, on the host and in the audit log.
func (b *bench) built(v View, name, isolation string, reasons ...string) {
	b.t.Helper()
	if v.State != Running || v.Built.Engine != name || v.Built.Isolation != isolation {
		b.t.Errorf("%v is %s with %+v, want %s with %s", v.Key, v.State, v.Built, name, isolation)
		return
	}
	for _, part := range reasons {
		if !strings.Contains(v.Built.Reason+" / "+v.Built.Degraded, part) {
			b.t.Errorf("%v: reason %q, degraded %q; want %q", v.Key, v.Built.Reason, v.Built.Degraded, part)
		}
	}
	has := b.host.Box(v.Box).Spec().WithDefaults()
	if has.Engine != name || has.Isolation != isolation {
		b.t.Errorf("the box of %v has %s with %s, want %s with %s", v.Key, has.Engine, has.Isolation, name, isolation)
	}
	var last map[string]any
	b.audit.mu.Lock()
	for _, e := range b.audit.list {
		if e.Session == v.ID && (e.Action == "create" || e.Action == "recreate") && e.Decision == "done" {
			last = e.Details
		}
	}
	b.audit.mu.Unlock()
	if last["engine"] != name || last["isolation"] != isolation || (v.Built.Degraded == "") == (last["degraded"] != nil) {
		b.t.Errorf("the audit log says %v of %+v", last, v.Built)
	}
}

// listGrowsOld lets the list of engines become old.
func listGrowsOld() { time.Sleep(time.Minute) }

// TestSecondEngine: a session gets the next engine of the order while the first is not available, in
// whichever way that shows, and the first again once it is back.
func TestSecondEngine(t *testing.T) {
	withEngines(t, []string{"containerd", "native"}, func(b *bench) {
		b.built(b.ensure(Key{"t", "1"}, policy.Request{}), "native", "namespaces", "containerd: ", "does not know it")
		b.host.SetEngine("containerd", "namespaces", "its socket is not there: start it")
		listGrowsOld()
		b.built(b.ensure(Key{"t", "2"}, policy.Request{}), "native", "namespaces", "containerd: its socket is not there: start it")
		b.host.SetEngine("containerd", "namespaces", "")
		listGrowsOld()
		v := b.ensure(Key{"t", "3"}, policy.Request{})
		b.built(v, "containerd", "namespaces", "the first of containerd, native")
		if again := b.ensure(Key{"t", "2"}, policy.Request{}); again.Built.Engine != "native" || again.Generation != 1 {
			t.Errorf("a live session was moved: %+v", again.Built)
		}
		// It goes while it is believed to be there.
		b.host.SetEngine("containerd", "namespaces", "it died")
		b.built(b.ensure(Key{"t", "4"}, policy.Request{}), "native", "namespaces", "containerd: ", "it died")
		if now := b.get(v.Key); now.State != Running || now.Built != v.Built {
			t.Errorf("the session of an engine that died is %s with %+v", now.State, now.Built)
		}
		// The box of a lost session is built by what is there now.
		b.host.Kill(v.Box)
		b.eventually("the loss", func() bool { return b.get(v.Key).State == Failed })
		if now := b.get(v.Key); now.Built != (choose.Choice{}) {
			t.Errorf("a session without a box has %+v", now.Built)
		}
		b.built(b.ensure(v.Key, policy.Request{}), "native", "namespaces", "it died")
	})
}

// TestNoEngine: without an engine that works, a session is refused or failed, with the reason of each
// engine, and the first use after one came back builds a box at once.
func TestNoEngine(t *testing.T) {
	withEngines(t, []string{"containerd", "oci"}, func(b *bench) {
		b.host.SetEngine("containerd", "namespaces", "its socket is not there")
		b.host.SetEngine("oci", "namespaces", "runc is not installed")
		refused := func(err error) {
			t.Helper()
			if !errors.Is(err, engine.ErrNoEngine) || !strings.Contains(err.Error(), "containerd: its socket is not there; oci: runc is not installed") {
				t.Errorf("%v, want no engine", err)
			}
		}
		_, err := b.Ensure(ctx, me, keyA, policy.Request{})
		refused(err)
		if _, err := b.Get(keyA); !errors.Is(err, ErrNotFound) || len(b.host.IDs()) != 0 {
			t.Errorf("a session that was refused: %v, boxes %q", err, b.host.IDs())
		}
		b.host.SetEngine("oci", "namespaces", "")
		time.Sleep(time.Millisecond) // not in the very moment of the last list
		v := b.ensure(keyA, policy.Request{})
		b.built(v, "oci", "namespaces", "containerd: its socket is not there")

		b.host.SetEngine("oci", "namespaces", "runc is not installed")
		b.exec(keyA, "true") // needs no engine
		b.host.Kill(v.Box)
		listGrowsOld()
		_, err = b.Exec(ctx, me, keyA, &policy.Request{}, Exec{Args: []string{"true"}})
		refused(err)
		if now := b.get(keyA); now.State != Failed || !strings.Contains(now.Reason, "runc is not installed") {
			t.Errorf("the session is %s: %s", now.State, now.Reason)
		}
		b.host.SetEngine("containerd", "namespaces", "")
		time.Sleep(time.Millisecond)
		b.exec(keyA, "true")
		b.built(b.get(keyA), "containerd", "namespaces")
	})
}

// TestWalls: no session that requires a wall gets a weaker one, and one that accepts a weaker one says
// that it has it.
func TestWalls(t *testing.T) {
	withEngines(t, []string{"native", "oci", "containerd"}, func(b *bench) {
		b.host.SetEngine("containerd", "namespaces", "")
		b.host.SetEngine("oci", "gvisor", "runsc is not installed")
		_, err := b.Ensure(ctx, me, keyA, profile("hard"))
		for _, part := range []string{"native: has no isolation gvisor", "oci: runsc is not installed", "containerd: has no isolation gvisor"} {
			if !errors.Is(err, engine.ErrNoEngine) || !strings.Contains(err.Error(), part) {
				t.Errorf("%v, want %q", err, part)
			}
		}
		weak := b.ensure(keyA, profile("soft"))
		b.built(weak, "native", "namespaces", "the first of native, oci, containerd", "isolation is namespaces, not gvisor: native: has no isolation gvisor; oci: runsc is not installed")
		if again := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Isolation: ptr("gvisor")}}); again.Generation != 1 {
			t.Errorf("asking for what it asks for replaced it: %+v", again)
		}
		if _, err := b.Ensure(ctx, me, keyA, policy.Request{Wishes: spec.Wishes{Profile: "soft", Require: ptr(true)}}); !errors.Is(err, ErrConflict) {
			t.Errorf("requiring what a live session does not: %v, want a conflict", err)
		}
		b.host.SetEngine("oci", "gvisor", "")
		listGrowsOld()
		strong := b.ensure(keyB, profile("hard"))
		b.built(strong, "oci", "gvisor", "native: has no isolation gvisor")
		b.built(b.ensure(Key{"t", "c"}, profile("soft")), "oci", "gvisor")
		if v := b.get(keyB); v.Built.Degraded != "" {
			t.Errorf("degraded: %s", v.Built.Degraded)
		}
		// It goes. The strong session stays failed, whatever else works.
		b.host.SetEngine("oci", "gvisor", "it hangs")
		b.host.Kill(strong.Box)
		b.host.Kill(weak.Box)
		if _, err := b.Exec(ctx, me, keyB, &policy.Request{}, Exec{Args: []string{"true"}}); !errors.Is(err, engine.ErrNoEngine) {
			t.Errorf("%v, want no engine", err)
		}
		if v := b.get(keyB); v.State != Failed {
			t.Errorf("the session is %s with %+v", v.State, v.Built)
		}
		b.exec(keyA, "true")
		b.built(b.get(keyA), "native", "namespaces", "it hangs")
	})
}

// TestEnginesAsked: requests and profiles name engines, and a live session of another one conflicts.
func TestEnginesAsked(t *testing.T) {
	withEngines(t, []string{"native", "oci"}, func(b *bench) {
		b.host.SetEngine("oci", "namespaces", "")
		b.built(b.ensure(keyA, policy.Request{}), "native", "namespaces")
		b.built(b.ensure(keyB, profile("last")), "oci", "namespaces", "the only engine")
		asks := func(name string) policy.Request {
			return policy.Request{Wishes: spec.Wishes{Engine: &name}}
		}
		if v := b.ensure(keyA, asks("native")); v.Generation != 1 {
			t.Errorf("asking for the engine that it has: %+v", v)
		}
		var conflict *ConflictError
		if _, err := b.Ensure(ctx, me, keyA, asks("oci")); !errors.As(err, &conflict) || conflict.Fields[0] != (Conflict{"engine", `"native"`, `"oci"`}) {
			t.Errorf("%v, want a conflict about the engine", err)
		}
		b.built(b.ensure(Key{"t", "c"}, asks("oci")), "oci", "namespaces")
		b.host.SetEngine("oci", "namespaces", "gone")
		if _, err := b.Ensure(ctx, me, Key{"t", "d"}, asks("oci")); !errors.Is(err, engine.ErrNoEngine) {
			t.Errorf("%v, want no engine: it was asked for by name", err)
		}
	})
}

// TestEnginesAfterRestart: a session keeps its box whatever the configuration says then, and the next
// box follows the configuration.
func TestEnginesAfterRestart(t *testing.T) {
	for _, lost := range []bool{false, true} { // the database
		withEngines(t, []string{"oci", "native"}, func(b *bench) {
			b.host.SetEngine("oci", "namespaces", "")
			b.host.SetEngine("oci", "gvisor", "")
			v, hard := b.ensure(keyA, policy.Request{}), b.ensure(keyB, profile("hard"))
			asked := b.ensure(Key{"t", "c"}, policy.Request{Wishes: spec.Wishes{Engine: ptr("oci")}})
			if lost {
				must(t, b.Close(ctx, false))
				must(t, os.Remove(filepath.Join(b.dir, "boxd.db")))
			} else {
				b.crash()
			}
			b.policy.Engines = []string{"native"}
			b.policy.Profiles = nil
			b.host.SetEngine("oci", "namespaces", "not known here")
			b.host.SetEngine("oci", "gvisor", "not known here")
			b.start()
			for _, was := range []View{v, hard, asked} {
				now := b.get(was.Key)
				if now.State != Running || now.Box != was.Box || now.Built.Engine != "oci" || now.Built.Isolation != was.Built.Isolation || !lost && now.Built != was.Built {
					t.Errorf("%v is %s with %+v after the restart, was %+v", was.Key, now.State, now.Built, was.Built)
				}
				b.exec(was.Key, "true")
				b.host.Kill(was.Box)
			}
			b.exec(keyA, "true")
			b.built(b.get(keyA), "native", "namespaces", "the only engine")
			for _, was := range []View{hard, asked} { // for what they need, nothing is left
				if _, err := b.Exec(ctx, me, was.Key, nil, Exec{Args: []string{"true"}}); !errors.Is(err, policy.ErrDenied) {
					t.Errorf("%v: %v, want a refusal", was.Key, err)
				}
				if now := b.get(was.Key); now.State != Failed || now.Reason == "" {
					t.Errorf("%v is %s: %q", was.Key, now.State, now.Reason)
				}
			}
		})
	}
}

// TestOldRecord: a session of an older build has the native engine.
func TestOldRecord(t *testing.T) {
	r := sampleSession()
	r.Built, r.Resolved.Isolation, r.Resolved.Require = choose.Choice{}, "", false
	got, err := decodeSession(sessionKey(r.key()), encode(r))
	if err != nil || got.Built.Engine != "native" || got.Built.Isolation != "namespaces" || got.Resolved.Isolation != "namespaces" || !got.Resolved.Require {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestHangingEngine: while an engine does not answer, callers wait for one question about it, and those
// that need no answer do not wait.
func TestHangingEngine(t *testing.T) {
	withEngines(t, []string{"oci", "native"}, func(b *bench) {
		b.policy.Profiles["native"] = policy.ProfileConfig{Engines: &[]string{"native"}}
		must(t, b.Close(ctx, false))
		b.start()
		questions := 0
		b.host.SetHook(func(ctx context.Context, op, _ string) error {
			if op == "engines" { // one at a time, so questions needs no lock
				questions++
				time.Sleep(5 * time.Second)
			}
			return nil
		})
		b.host.SetEngine("oci", "namespaces", "it does not answer")
		begun := time.Now()
		done := make(chan View)
		for i := range 20 {
			go func() { done <- b.ensure(Key{"t", fmt.Sprint(i)}, policy.Request{}) }()
		}
		synctest.Wait()
		b.built(b.ensure(keyA, profile("native")), "native", "namespaces")
		if waited := time.Since(begun); waited > 0 {
			t.Errorf("a native box waited %v", waited)
		}
		for range 20 {
			b.built(<-done, "native", "namespaces", "it does not answer")
		}
		if waited := time.Since(begun); questions != 1 || waited > 6*time.Second {
			t.Errorf("%d questions in %v", questions, waited)
		}
		gives, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		listGrowsOld()
		go b.ensure(keyB, policy.Request{})
		synctest.Wait()
		if _, err := b.Ensure(gives, me, Key{"t", "x"}, policy.Request{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the end of the caller's time", err)
		}
		time.Sleep(10 * time.Second)
	})
}
