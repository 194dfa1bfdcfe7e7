package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/headtail"
	"github.com/boxd/boxd/policy"
)

func TestExec(t *testing.T) {
	b := open(t)
	var seen []ExecObservation
	b.options.Observe = func(o ExecObservation) { seen = append(seen, o) }
	res := b.exec(keyA, "exit", "3")
	if res.Verdict != engine.Exited || res.ExitCode != 3 || !res.Session.Created || res.Timeout != 30*time.Second {
		t.Errorf("result %+v", res)
	}
	if res := b.exec(keyA, "echo", "hello"); string(res.Stdout) != "hello" || res.StdoutMissing != nil || res.Session.Created {
		t.Errorf("result %+v", res)
	}
	var out bytes.Buffer
	if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"echo", "x"}, Stdout: &out}); err != nil || out.String() != "x" {
		t.Errorf("streamed %q, %v", out.String(), err)
	}
	if len(seen) != 3 || seen[0].Verdict != engine.Exited || seen[0].Tenant != "t" {
		t.Errorf("observed %+v", seen)
	}
	if n := b.Stats().Verdicts[engine.Exited]; n != 3 {
		t.Errorf("%d verdicts", n)
	}
	if !b.audit.has("exec", audit.Allow) || !b.audit.has("exec", audit.Done) {
		t.Error("a command is not in the audit log")
	}
	if v := b.get(keyA); v.Execs != 0 {
		t.Errorf("%d commands run", v.Execs)
	}
}

func TestExecRefusals(t *testing.T) {
	b := open(t)
	if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); !errors.Is(err, ErrNotFound) {
		t.Errorf("without a request: %v", err)
	}
	if _, err := b.Exec(ctx, me, keyA, &policy.Request{}, Exec{}); !errors.Is(err, engine.ErrInvalid) || len(b.List("")) != 0 {
		t.Errorf("without a program: %v, %d sessions", err, len(b.List("")))
	}
	b.ensure(keyA, policy.Request{})
	for name, tc := range map[string]struct {
		e    Exec
		want error
	}{
		"no args":       {Exec{}, engine.ErrInvalid},
		"missing":       {Exec{Args: []string{"missing"}}, engine.ErrNotFound},
		"nul":           {Exec{Args: []string{"a\x00"}}, engine.ErrInvalid},
		"env":           {Exec{Args: []string{"true"}, Env: []string{"X"}}, engine.ErrInvalid},
		"tty and err":   {Exec{Args: []string{"true"}, TTY: &engine.WindowSize{}, Stderr: &bytes.Buffer{}}, engine.ErrInvalid},
		"limit below 0": {Exec{Args: []string{"true"}, OutputLimit: -2}, engine.ErrInvalid},
	} {
		if _, err := b.Exec(ctx, me, keyA, nil, tc.e); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	if use, _ := b.Quota("t"); use.Execs != 0 {
		t.Errorf("%d commands are counted", use.Execs)
	}
}

func TestExecEnvironment(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Env: map[string]string{"A": "1", "AB": "2"}}})
	if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}, Env: []string{"A=3", "C=4"}}); err != nil {
		t.Fatal(err)
	}
	if env := b.host.Box(v.Box).Last().Env; !slices.Equal(env, []string{"AB=2", "A=3", "C=4"}) {
		t.Errorf("environment %q", env)
	}
}

func TestCaptureIsBounded(t *testing.T) {
	b := newBench(t)
	b.alter = func(o *Options) { o.CaptureLimit = 5 }
	b.start()
	if res := b.exec(keyA, "echo", "hello, you"); string(res.Stdout) != "helou" || res.StdoutMissing == nil || *res.StdoutMissing != (headtail.Missing{Offset: 3, Bytes: 5}) {
		t.Errorf("%q without %+v", res.Stdout, res.StdoutMissing)
	}
	if res := b.exec(keyA, "echo", "hello"); string(res.Stdout) != "hello" || res.StdoutMissing != nil || res.StderrMissing != nil {
		t.Errorf("%q without %+v", res.Stdout, res.StdoutMissing)
	}
}

func TestExecTimeoutIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t)
		began := time.Now()
		res, err := b.Exec(ctx, me, keyA, &policy.Request{}, Exec{Args: []string{"wait"}, Timeout: time.Hour})
		if err != nil || res.Verdict != engine.TimedOut || res.Timeout != 2*time.Minute || time.Since(began) < 2*time.Minute {
			t.Errorf("%+v, %v after %v", res, err, time.Since(began))
		}
		b.Close(ctx, false)
	})
}

func TestExecIsCanceled(t *testing.T) {
	b := open(t)
	ctx, cancel := context.WithCancel(ctx)
	started := func(engine.Process) { cancel() }
	res, err := b.Exec(ctx, me, keyA, &policy.Request{}, Exec{Args: []string{"wait"}, Started: started})
	if err != nil || res.Verdict != engine.Canceled {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestExecsOfASessionRunAtOnce(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{}, 3)
	for range 3 {
		go func() {
			b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"wait"}})
			done <- struct{}{}
		}()
	}
	b.eventually("three commands", func() bool { return b.get(keyA).Execs == 3 })
	b.exec(keyA, "true")
	cancel()
	for range 3 {
		<-done
	}
}

func TestQuotaOfExecs(t *testing.T) {
	b := newBench(t)
	b.policy.TenantDefaults.Execs = 1
	b.start()
	ctx, cancel := context.WithCancel(ctx)
	running, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		b.Exec(ctx, me, keyA, &policy.Request{}, Exec{Args: []string{"wait"}, Started: func(engine.Process) { close(running) }})
	}()
	await(t, running, "the command")
	_, err := b.Exec(context.Background(), me, keyA, nil, Exec{Args: []string{"true"}})
	if !errors.Is(err, policy.ErrQuota) || !b.audit.has("exec", audit.Deny) {
		t.Errorf("error %v, want a quota", err)
	}
	cancel()
	<-done
	b.exec(keyA, "true")
}

// A box that dies under a command: the result says so, and the next one gets a new
// box.
func TestBoxLostDuringExec(t *testing.T) {
	b := open(t)
	first := b.ensure(keyA, policy.Request{})
	res := b.exec(keyA, "die")
	if res.Verdict != engine.BoxLost || res.ExitCode != -1 || res.Session.State != Failed || res.Session.Reason == "" {
		t.Errorf("result %+v", res)
	}
	next := b.exec(keyA, "true")
	if next.Verdict != engine.Exited || !next.Session.Recreated || next.Session.Generation != 2 || next.Session.Box == first.Box {
		t.Errorf("result %+v", next)
	}
	if after := b.exec(keyA, "true"); after.Session.Recreated {
		t.Error("told twice that the box is new")
	}
	st := b.Stats()
	if st.Recreated != 1 || st.BoxesLost != 1 || st.Created != 1 {
		t.Errorf("stats %+v", st)
	}
	if ids := b.host.IDs(); len(ids) != 1 {
		t.Errorf("boxes %v", ids)
	}
	if !b.audit.has("recreate", audit.Done) || len(b.Errors()) == 0 {
		t.Error("nobody was told")
	}
}

// A box that is lost between the look at it and the start of the program.
func TestBoxLostBeforeExec(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{})
	once := true
	b.host.SetHook(func(_ context.Context, op, box string) error {
		if op == "start" && once {
			once = false
			b.host.Kill(box)
		}
		return nil
	})
	res := b.exec(keyA, "exit", "5")
	if res.ExitCode != 5 || !res.Session.Recreated || res.Session.Box == v.Box {
		t.Errorf("result %+v", res)
	}
}

// What may have run is not run again.
func TestBoxLostWhileStarting(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	begun := 0
	b.host.SetHook(func(_ context.Context, op, box string) error {
		if op != "start" && op != "launch" {
			return nil
		}
		begun++
		b.host.Kill(box)
		return fmt.Errorf("%w: %w", engine.ErrBoxLost, engine.ErrMayHaveRun)
	})
	res := b.exec(keyA, "exit", "5")
	if res.Verdict != engine.BoxLost || res.ExitCode != -1 || res.Session.Recreated || begun != 1 {
		t.Errorf("%d starts, result %+v", begun, res)
	}
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}}); !errors.Is(err, engine.ErrMayHaveRun) || begun != 2 {
		t.Errorf("%d starts, error %v", begun, err)
	}
}

func TestExecWhileRemoved(t *testing.T) {
	b := open(t)
	running := make(chan struct{})
	type outcome struct {
		res ExecResult
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		res, err := b.Exec(ctx, me, keyA, &policy.Request{}, Exec{Args: []string{"wait"}, Started: func(engine.Process) { close(running) }})
		done <- outcome{res, err}
	}()
	await(t, running, "the command")
	if err := b.Remove(ctx, me, keyA); err != nil {
		t.Fatal(err)
	}
	o := <-done
	if o.err != nil || (o.res.Verdict != engine.Canceled && o.res.Verdict != engine.BoxLost) {
		t.Errorf("%+v", o)
	}
	if _, err := b.Get(keyA); !errors.Is(err, ErrNotFound) {
		t.Errorf("after the removal: %v", err)
	}
	if st := b.Stats(); st.BoxesLost != 0 || st.Removed != 1 {
		t.Errorf("stats %+v", st)
	}
}

// Whoever wants a session that is being removed gets a new one of that id.
func TestEnsureWaitsForTheRemoval(t *testing.T) {
	b := open(t)
	old := b.ensure(keyA, policy.Request{})
	free, reached := make(chan struct{}), make(chan struct{})
	b.host.SetHook(func(_ context.Context, op, box string) error {
		if op == "remove" && box == old.Box {
			close(reached)
			<-free
		}
		return nil
	})
	removed := make(chan error, 1)
	go func() { removed <- b.Remove(ctx, me, keyA) }()
	await(t, reached, "the removal")
	if v := b.get(keyA); v.State != Stopping {
		t.Errorf("state %q", v.State)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := b.Exec(short, me, keyA, nil, Exec{Args: []string{"true"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	made := make(chan View, 1)
	go func() { made <- b.ensure(keyA, policy.Request{}) }()
	close(free)
	if err := <-removed; err != nil {
		t.Error(err)
	}
	if v := <-made; !v.Created || v.Box == old.Box {
		t.Errorf("%+v", v)
	}
}

func TestRemoveDuringCreation(t *testing.T) {
	b := open(t)
	reached := make(chan struct{})
	b.host.SetHook(func(ctx context.Context, op, _ string) error {
		if op == "create" {
			close(reached)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	created := make(chan error, 1)
	go func() {
		_, err := b.Ensure(ctx, me, keyA, policy.Request{})
		created <- err
	}()
	await(t, reached, "the creation")
	if err := b.Remove(ctx, me, keyA); err != nil {
		t.Error(err)
	}
	if err := <-created; !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "removed") {
		t.Errorf("creator was told %v", err)
	}
	if n := len(b.host.IDs()); n != 0 || len(b.List("")) != 0 {
		t.Errorf("%d boxes and %d sessions are left", n, len(b.List("")))
	}
}

// The removal comes when the box exists but no client has seen it yet.
func TestRemoveBehindCreation(t *testing.T) {
	b := open(t)
	removed := make(chan error, 1)
	b.host.SetHook(func(ctx context.Context, op, _ string) error {
		if op == "created" {
			go func() { removed <- b.Remove(context.Background(), me, keyA) }()
			b.eventually("the removal", func() bool { return b.get(keyA).State == Stopping })
		}
		return nil
	})
	if _, err := b.Ensure(ctx, me, keyA, policy.Request{}); !errors.Is(err, ErrState) {
		t.Errorf("creator was told %v", err)
	}
	if err := <-removed; err != nil {
		t.Error(err)
	}
	b.eventually("the end of the box", func() bool { return len(b.host.IDs()) == 0 })
	if use, _ := b.Quota("t"); use != (policy.Use{}) {
		t.Errorf("in use: %+v", use)
	}
}

// A removal that fails at first is reported, and continues.
func TestRemovalGoesOn(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	boom, fails := errors.New("boom"), 1
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "remove" && fails > 0 {
			fails--
			return boom
		}
		return nil
	})
	if err := b.Remove(ctx, me, keyA); !errors.Is(err, boom) {
		t.Errorf("error %v", err)
	}
	b.eventually("the removal", func() bool { return len(b.List("")) == 0 })
	if n := len(b.host.IDs()); n != 0 {
		t.Errorf("%d boxes are left", n)
	}
	if err := b.Remove(ctx, me, keyA); !errors.Is(err, ErrNotFound) {
		t.Errorf("second removal: %v", err)
	}
}

// A dead box that could not be taken apart at once does not stand in the way for ever.
func TestReplacementGoesOn(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{})
	var once sync.Once
	failed := make(chan struct{})
	b.host.SetHook(func(_ context.Context, op, _ string) (err error) {
		if op == "remove" {
			once.Do(func() { err = errors.New("boom"); close(failed) })
		}
		return err
	})
	b.host.Kill(v.Box)
	await(t, failed, "the attempt")
	b.eventually("a new box", func() bool {
		v, err := b.Ensure(ctx, me, keyA, policy.Request{})
		return err == nil && v.Recreated
	})
	if ids := b.host.IDs(); len(ids) != 1 || ids[0] == v.Box {
		t.Errorf("boxes %v", ids)
	}
}

// Events that a box sent before it died are published, and before its death.
func TestLimitEventsOfALostBox(t *testing.T) {
	b := open(t)
	for range 20 {
		v := b.ensure(keyA, policy.Request{})
		sub := b.Subscribe("t", 0)
		box := b.host.Box(v.Box)
		box.Die(engine.Event{Kind: engine.EventPIDs, Count: 1}, engine.Event{Kind: engine.EventOOM, Count: 1}) // the watch sees both at once
		for want := []EventType{EventPIDsLimit, EventOOM, EventState, EventError}; len(want) > 0; want = want[1:] {
			if e := <-sub.C; e.Type != want[0] {
				t.Fatalf("event %+v, want %s", e, want[0])
			}
		}
		sub.Close()
	}
}

func TestLimitEvents(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{})
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	b.host.Box(v.Box).Report(engine.Event{Kind: engine.EventOOM, Count: 2})
	b.host.Box(v.Box).Report(engine.Event{Kind: engine.EventPIDs, Count: 3})
	if e := <-sub.C; e.Type != EventOOM || e.Details["count"] != int64(2) || e.Session != "a" {
		t.Errorf("event %+v", e)
	}
	if e := <-sub.C; e.Type != EventPIDsLimit {
		t.Errorf("event %+v", e)
	}
}

func TestAccessAndPeek(t *testing.T) {
	b := open(t)
	if _, err := b.Peek(keyA); !errors.Is(err, ErrNotFound) {
		t.Errorf("Peek: %v", err)
	}
	box, release, err := b.Access(ctx, me, keyA, &policy.Request{}, Access{Action: "file-read"})
	if err != nil {
		t.Fatal(err)
	}
	if v := b.get(keyA); v.Box != box.ID() || !v.ExpiresAt.IsZero() {
		t.Errorf("while it is held: %+v", v)
	}
	release()
	if v := b.get(keyA); v.ExpiresAt.IsZero() {
		t.Error("it would never expire")
	}
	if box, err := b.Peek(keyA); box == nil || err != nil {
		t.Errorf("Peek: %v, %v", box, err)
	}
}

// An error about a program that cannot run names the program once.
func TestStartErrorNamesProgramOnce(t *testing.T) {
	for _, reason := range []error{engine.ErrNotFound, engine.ErrNotExecutable, engine.ErrNoDir} {
		err := fmt.Errorf("executing %q: %w", "x", reason)
		if got := startError("x", err); got != err {
			t.Errorf("%v", got)
		}
	}
	if got := startError("x", engine.ErrBoxLost); !errors.Is(got, engine.ErrBoxLost) || !strings.HasPrefix(got.Error(), `starting "x": `) {
		t.Errorf("%v", got)
	}
}
