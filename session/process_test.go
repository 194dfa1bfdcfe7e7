package session

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

func TestProcessRunsAndExits(t *testing.T) {
	b := open(t)
	p := b.launch(keyA, "web", "serve")
	v := p.View()
	if v.State != ProcessRunning || v.PID == 0 || v.ExitCode != nil || v.History != engine.DefaultHistory || p.Live() == nil {
		t.Errorf("running: %+v", v)
	}
	b.host.Box(v.Box).Process(v.Key).Exit(7)
	await(t, p.Done(), "the end")
	v = p.View()
	if v.State != ProcessExited || v.PID != 0 || v.ExitCode == nil || *v.ExitCode != 7 || v.Verdict != engine.Exited || v.EndedAt.IsZero() {
		t.Errorf("ended: %+v", v)
	}
	if p.Result().ExitCode != 7 {
		t.Errorf("result %+v", p.Result())
	}
	if !b.audit.has("start", audit.Allow) || !b.audit.has("start", audit.Done) || !b.audit.has("idle-exempt", audit.Allow) {
		t.Error("the audit log lacks something")
	}
	b.eventually("the audit entry of its end", func() bool { return b.audit.has("process-exited", audit.Done) })
	list, err := b.Processes(keyA)
	if err != nil || len(list) != 1 || list[0].ID != "web" {
		t.Errorf("processes %+v, %v", list, err)
	}
	if isDone(p.Gone()) {
		t.Error("its output is gone")
	}
}

// A long command line must not fill the daemon's memory.
func TestLongCommandLineIsShownInPart(t *testing.T) {
	b := open(t)
	p := b.launch(keyA, "p", "serve", strings.Repeat("x", 100<<10), "y")
	if args := p.View().Args; len(args) != 2 || args[0] != "serve" || len(args[1]) > maxRecordArgs {
		t.Errorf("%d arguments", len(args))
	}
	if got := b.host.Box(p.View().Box).Process(p.View().Key).Managed().Args; len(got) != 3 || len(got[1]) != 100<<10 {
		t.Errorf("the program gets %d arguments", len(got))
	}
}

func TestProcessIDs(t *testing.T) {
	b := open(t)
	b.launch(keyA, "p", "serve")
	for id, want := range map[string]error{
		"p": ErrExists, "": engine.ErrInvalid, "a/b": engine.ErrInvalid, "..": engine.ErrInvalid, "a\x00": engine.ErrInvalid,
	} {
		if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: id, Args: []string{"serve"}}); !errors.Is(err, want) {
			t.Errorf("id %q: %v, want %v", id, err, want)
		}
	}
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "q", Args: []string{"missing"}}); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("missing program: %v", err)
	}
	if _, err := b.Process(keyA, "q"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after a failed start: %v", err)
	}
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "q", Args: []string{"serve"}, ProcessSettings: ProcessSettings{History: 1}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("tiny history: %v", err)
	}
	if use, _ := b.Quota("t"); use.Processes != 1 {
		t.Errorf("%d processes are counted", use.Processes)
	}
}

func TestProcessIDIsUsedAgain(t *testing.T) {
	b := open(t)
	first := b.launch(keyA, "p", "exit", "1")
	await(t, first.Done(), "the end")
	// A start that fails leaves the old one.
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"missing"}}); err == nil {
		t.Fatal("a missing program runs")
	}
	if p, err := b.Process(keyA, "p"); err != nil || p != first || isDone(first.Gone()) {
		t.Error("a failed start took the old one away")
	}
	second := b.launch(keyA, "p", "serve")
	await(t, first.Gone(), "the old one to go")
	if first.View().Key == second.View().Key || isDone(second.Gone()) {
		t.Error("the new one is the old one")
	}
	box := b.host.Box(second.View().Box)
	if box.Process(first.View().Key) != nil {
		t.Error("the old one was not forgotten")
	}
}

func TestStop(t *testing.T) {
	for _, tc := range []struct {
		program string
		signal  syscall.Signal
		code    int
		wait    time.Duration
	}{
		{"filter", 0, 0, 0},
		{"serve", syscall.SIGTERM, -1, 0},
		{"stubborn", syscall.SIGKILL, -1, DefaultStopGrace},
	} {
		t.Run(tc.program, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t)
				p := b.launch(keyA, "p", tc.program)
				began := time.Now()
				if err := p.Stop(ctx, me, StopOptions{}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != tc.wait {
					t.Errorf("took %v, want %v", took, tc.wait)
				}
				v := p.View()
				if v.State != ProcessStopped || v.Signal != tc.signal || p.Result().ExitCode != tc.code {
					t.Errorf("%+v", v)
				}
				if err := p.Stop(ctx, me, StopOptions{}); err != nil {
					t.Errorf("stopping a stopped one: %v", err)
				}
				b.Close(ctx, false)
			})
		})
	}
}

func TestStopGoesOnWithoutTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t)
		p := b.launch(keyA, "p", "stubborn")
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := p.Stop(short, me, StopOptions{Grace: time.Minute}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if v := p.View(); v.State != ProcessStopping {
			t.Errorf("state %q", v.State)
		}
		<-p.Done()
		if v := p.View(); v.State != ProcessStopped {
			t.Errorf("state %q", v.State)
		}
		b.Close(ctx, false)
	})
}

func TestRemoveProcess(t *testing.T) {
	b := open(t)
	p := b.launch(keyA, "p", "serve")
	if err := p.Remove(ctx, me); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Process(keyA, "p"); !errors.Is(err, ErrNotFound) || !isDone(p.Gone()) {
		t.Errorf("it is still there: %v", err)
	}
	if b.host.Box(p.View().Box).Process(p.View().Key) != nil {
		t.Error("the box still has it")
	}
	if err := p.Remove(ctx, me); err != nil {
		t.Errorf("removing it again: %v", err)
	}
	if !b.audit.has("process-remove", audit.Allow) {
		t.Error("the audit log does not say so")
	}
}

// A box releases what it keeps of a process even if that fails at first, for example
// because the caller has gone.
func TestForgettingGoesOn(t *testing.T) {
	b := open(t)
	p := b.launch(keyA, "p", "serve")
	ctx, cancel := context.WithCancel(ctx)
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "forget" {
			cancel()
		}
		return nil
	})
	if err := p.Remove(ctx, me); err != nil {
		t.Fatal(err)
	}
	b.eventually("the box to forget it", func() bool { return b.host.Box(p.View().Box).Process(p.View().Key) == nil })
}

// A stop that comes before the start is recorded is not forgotten in a crash.
func TestStopDuringStartIsRecorded(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "launched" {
			p, err := b.Process(keyA, "p")
			must(t, err)
			if !p.markStopped() {
				t.Error("somebody else stopped it")
			}
		}
		return nil
	})
	p := b.launch(keyA, "p", "stubborn")
	if v := p.View(); v.State != ProcessStopping {
		t.Errorf("state %q", v.State)
	}
	must(t, b.written())
	b.crash()
	b.host.SetHook(nil)
	b.alter = func(o *Options) { o.StopGrace = time.Millisecond }
	b.start()
	b.eventually("the stop", func() bool {
		l, err := b.Processes(keyA)
		return err == nil && len(l) == 1 && l[0].State == ProcessStopped
	})
}

func TestEndedProcessesArePruned(t *testing.T) {
	b := newBench(t)
	b.alter = func(o *Options) { o.KeepEnded = 2 }
	b.start()
	for _, id := range []string{"a", "b", "c", "d"} {
		await(t, b.launch(keyA, id, "exit", "0").Done(), "the end")
	}
	b.eventually("two that are left", func() bool {
		list, _ := b.Processes(keyA)
		return len(list) == 2 && list[0].ID == "c" && list[1].ID == "d"
	})
}

// The removal of a session stops its processes, and reports no lost box, even if a
// successor completes it.
func TestProcessesOfARemovedSession(t *testing.T) {
	for _, crash := range []bool{false, true} {
		b := open(t)
		ended, p := b.launch(keyA, "ended", "exit", "4"), b.launch(keyA, "p", "serve")
		await(t, ended.Done(), "the end")
		sub := b.Subscribe(keyA.Tenant, 0)
		if crash {
			cut, cancel := context.WithCancel(ctx)
			b.host.SetHook(func(ctx context.Context, op, _ string) error {
				if op == "remove" {
					cancel()
					<-ctx.Done()
				}
				return ctx.Err()
			})
			if err := b.Remove(cut, me, keyA); err == nil {
				t.Fatal("it was removed")
			}
			sub.Close()
			b.crash()
			b.host.SetHook(nil)
			if err := b.tryStart(); err != nil {
				t.Fatal(err)
			}
		} else {
			must(t, b.Remove(ctx, me, keyA))
			await(t, p.Done(), "the end")
			if v := p.View(); v.State != ProcessStopped || v.Verdict != engine.Canceled || v.ExitCode != nil {
				t.Errorf("%+v", v)
			}
			if v := ended.View(); v.State != ProcessExited || *v.ExitCode != 4 {
				t.Errorf("ended before: %+v", v)
			}
			for told := false; !told; {
				select {
				case e := <-sub.C:
					told = e.Process == "p"
					if told && (e.Type != EventProcessStopped || e.Details["verdict"] != engine.Canceled) {
						t.Errorf("%+v", e)
					}
				case <-time.After(10 * time.Second):
					t.Fatal("the end was not told")
				}
			}
			sub.Close()
		}
		b.eventually("the removal", func() bool { return len(b.List("")) == 0 })
		if b.audit.count(string(EventProcessStopped), audit.Done) != 1 || b.audit.count("box-lost", audit.Failed) != 0 {
			t.Errorf("crash %v: the audit log says otherwise", crash)
		}
	}
}

func TestProcessesOfALostBox(t *testing.T) {
	b := open(t)
	ended := b.launch(keyA, "ended", "exit", "4")
	await(t, ended.Done(), "the end")
	p := b.launch(keyA, "p", "serve")
	b.host.Kill(p.View().Box)
	await(t, p.Done(), "the end")
	v := p.View()
	if v.State != ProcessFailed || v.Verdict != engine.BoxLost || v.ExitCode != nil || v.Signal != 0 {
		t.Errorf("lost: %+v", v)
	}
	if v := ended.View(); v.State != ProcessExited || *v.ExitCode != 4 {
		t.Errorf("ended before: %+v", v)
	}
	b.eventually("the failure", func() bool { return b.get(keyA).State == Failed })
	again := b.launch(keyA, "p", "serve")
	if v := b.get(keyA); v.State != Running || v.Generation != 2 || v.Processes != 1 || again.View().Box == p.View().Box {
		t.Errorf("after the next use: %+v", v)
	}
}

func TestBoxLostBeforeLaunch(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	once := true
	b.host.SetHook(func(_ context.Context, op, box string) error {
		if op == "launch" && once {
			once = false
			b.host.Kill(box)
		}
		return nil
	})
	p := b.launch(keyA, "p", "serve")
	if v := b.get(keyA); v.Generation != 2 || p.View().State != ProcessRunning {
		t.Errorf("%+v, %+v", v, p.View())
	}
}

// The answer to a launch is lost, but the process runs.
func TestStrayProcessIsKilled(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{})
	boom := errors.New("boom")
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "launched" {
			return boom
		}
		return nil
	})
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}}); !errors.Is(err, boom) {
		t.Fatalf("error %v", err)
	}
	box := b.host.Box(v.Box)
	b.eventually("its end", func() bool { return len(box.Processes()) == 0 })
}

func TestQuotaOfProcesses(t *testing.T) {
	b := newBench(t)
	b.policy.TenantDefaults.Processes = 1
	b.start()
	p := b.launch(keyA, "p", "serve")
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "q", Args: []string{"serve"}}); !errors.Is(err, policy.ErrQuota) {
		t.Errorf("error %v, want a quota", err)
	}
	if err := p.Stop(ctx, me, StopOptions{}); err != nil {
		t.Fatal(err)
	}
	b.launch(keyA, "q", "serve") // there is room at once
}

// An ended process that was removed stays away, also if its id was about to be used again.
func TestRemovedProcessStaysAway(t *testing.T) {
	b := open(t)
	old := b.launch(keyA, "p", "exit", "3")
	await(t, old.Done(), "the end")
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "launch" {
			must(t, old.Remove(ctx, me))
			return errors.New("boom")
		}
		return nil
	})
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}}); err == nil {
		t.Fatal("started")
	}
	if p, err := b.Process(keyA, "p"); err == nil {
		t.Errorf("it was removed: %+v", p.View().State)
	}
}

// The record of a process that runs is not overtaken by what the removal of the one before
// it records.
func TestRemovalBesideTheNextStart(t *testing.T) {
	b := open(t)
	old := b.launch(keyA, "p", "exit", "3")
	await(t, old.Done(), "the end")
	good := b.Manager.store.db
	held := make(chan *bbolt.Tx, 1)
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op != "launched" {
			return nil
		}
		tx, err := good.Begin(true) // the writer waits
		held <- tx
		return err
	})
	started, removed := make(chan error, 1), make(chan error, 1)
	go func() {
		started <- second(b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}}))
	}()
	tx := <-held
	b.eventually("its record", func() bool {
		p, err := b.Process(keyA, "p")
		if err != nil {
			return false
		}
		b.session(keyA).mu.Lock()
		defer b.session(keyA).mu.Unlock()
		return p.launched
	})
	go func() { removed <- old.Remove(ctx, me) }()
	await(t, old.Gone(), "the removal")
	must(t, tx.Rollback())
	must(t, <-started)
	must(t, <-removed)
	p, err := b.Process(keyA, "p")
	must(t, err)
	b.crash()
	b.host.Remove(p.View().Box)
	b.start()
	if p, err := b.Process(keyA, "p"); err != nil || p.View().State != ProcessFailed {
		t.Errorf("a process that was answered for: %v", err)
	}
}
