package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session/history"
)

// ran lists what ended in a session, or in tenant t, oldest first.
func (b *bench) ran(session string) (list []history.Entry) {
	b.t.Helper()
	list, _, err := b.History(history.Query{Tenant: "t", Session: session, Limit: 1000})
	if err != nil {
		b.t.Fatal(err)
	}
	slices.Reverse(list)
	return list
}

// ranText is ran in short.
func (b *bench) ranText(session string) string {
	var out []string
	for _, e := range b.ran(session) {
		out = append(out, strings.TrimSpace(e.Process+" "+strings.Join(e.Argv, " "))+": "+string(e.Result.Verdict))
	}
	return strings.Join(out, ", ")
}

func TestHistory(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Labels: spec.Labels{"user": "ada"}}})
	b.exec(keyA, "exit", "3")
	admin := Caller{Tenant: "default", Actor: "root", Request: "r2"}
	if _, err := b.Exec(ctx, admin, keyA, nil, Exec{Args: []string{"echo", "x"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"missing"}}); err == nil {
		t.Fatal("a missing program runs")
	}
	p := b.launch(keyB, "web", "exit", "7")
	await(t, p.Done(), "the end")
	b.eventually("the end of the process", func() bool { return len(b.ran("b")) == 1 })

	check := func(when string) {
		t.Helper()
		if got := b.ranText("a"); got != "exit 3: exited, echo x: exited" {
			t.Errorf("%s: a: %q", when, got)
		}
		if got := b.ranText("b"); got != "web exit 7: exited" {
			t.Errorf("%s: b: %q", when, got)
		}
		list := b.ran("a")
		if e := list[0]; e.Result.ExitCode != 3 || e.Actor != "me" || e.Request != "r1" || e.Profile != "default" || e.User != "ada" || e.Box == "" || e.StartedAt.After(e.EndedAt) || e.Stdout != nil {
			t.Errorf("%s: %+v", when, e)
		}
		if e := list[1]; e.Actor != "default/root" || e.Request != "r2" {
			t.Errorf("%s: %+v", when, e)
		}
		u, err := b.Usage(history.UsageQuery{Tenant: "t"})
		if err != nil || len(u) != 1 || u[0].Execs != 2 || u[0].Processes != 1 {
			t.Errorf("%s: %+v, %v", when, u, err)
		}
	}
	check("live")
	b.restart()
	check("after a crash")
	for _, key := range []Key{keyA, keyB} {
		if err := b.Remove(ctx, me, key); err != nil {
			t.Fatal(err)
		}
	}
	check("removed")
	b.restart()
	check("removed, after a crash")
	if _, _, err := b.History(history.Query{Tenant: "t", Session: "none", Limit: 1}); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such session: %v", err)
	}
	if list, _, err := b.History(history.Query{Tenant: "other", Limit: 1}); err != nil || len(list) != 0 {
		t.Errorf("another tenant: %+v, %v", list, err)
	}
	never := history.Query{Tenant: "t", Session: "a", Verdicts: []string{"oom"}, Limit: 1}
	if list, _, err := b.History(never); err != nil || len(list) != 0 {
		t.Errorf("nothing that matches: %+v, %v", list, err)
	}
}

// A command whose caller fails has run all the same: hanging up is no way around a budget.
func TestHistoryOfFailedCaller(t *testing.T) {
	b := newBench(t)
	b.policy.Tenants = map[string]policy.Tenant{"t": {Daily: policy.Budget{Execs: 1}}}
	b.start()
	b.ensure(keyA, policy.Request{})
	if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"unmeasured"}}); err == nil {
		t.Error("no error")
	}
	if got := b.ranText("a"); got != "unmeasured: exited" {
		t.Errorf("%q", got)
	}
	if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); !errors.Is(err, policy.ErrQuota) {
		t.Errorf("it does not count: %v", err)
	}
}

func TestHistoryKeeps(t *testing.T) {
	b := newBench(t)
	full, program, none, size := policy.KeepFull, policy.KeepProgram, policy.KeepNone, spec.Size(10)
	b.policy.Profiles = map[string]policy.ProfileConfig{
		"full": {KeepArgv: &full, KeepOutput: &size}, "program": {KeepArgv: &program}, "none": {KeepArgv: &none},
	}
	b.start()
	for name, want := range map[string]string{"full": "echo 0123456789abcdef: exited", "program": "echo: exited", "none": ": exited"} {
		key := Key{"t", name}
		b.ensure(key, policy.Request{Wishes: spec.Wishes{Profile: name}})
		res := b.exec(key, "echo", "0123456789abcdef")
		if string(res.Stdout) != "0123456789abcdef" {
			t.Errorf("%s: answered %q", name, res.Stdout)
		}
		if got := b.ranText(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if e := b.ran("full")[0]; string(e.Stdout) != "012345cdef" || e.StdoutMissing == nil || e.StdoutMissing.Bytes != 6 || e.StderrMissing != nil {
		t.Errorf("kept %q, %+v", e.Stdout, e.StdoutMissing)
	}
	if e := b.ran("program")[0]; e.Stdout != nil {
		t.Errorf("kept %q without being asked", e.Stdout)
	}
	// A caller's writer still gets everything, and one writer for both streams stays one.
	var out bytes.Buffer
	if _, err := b.Exec(ctx, me, Key{"t", "full"}, nil, Exec{
		Args: []string{"echo", "0123456789abcdef"}, Env: []string{"KEY=secret of env"}, Stdin: strings.NewReader("secret of stdin"), Stdout: &out, Stderr: &out,
	}); err != nil || out.String() != "0123456789abcdef" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if cmd := b.boxOf(Key{"t", "full"}).Last(); cmd.Stdout != cmd.Stderr {
		t.Error("one stream became two")
	}
	if e := b.ran("full")[1]; string(e.Stdout) != "012345cdef" || e.Stderr != nil {
		t.Errorf("kept %q and %q", e.Stdout, e.Stderr)
	} else if text, err := json.Marshal(e); err != nil || bytes.Contains(text, []byte("secret of")) {
		t.Errorf("kept environment or standard input: %s, %v", text, err)
	}
	// A profile that has gone keeps no arguments.
	b.crash()
	b.policy.Profiles = nil
	b.start()
	b.exec(Key{"t", "full"}, "echo", "x")
	if got := b.ran("full")[2].Argv; !slices.Equal(got, []string{"echo"}) {
		t.Errorf("%q", got)
	}
}

// TestHistoryLong: a long command line is cut, and one of many arguments.
func TestHistoryLong(t *testing.T) {
	b := open(t)
	b.exec(keyA, append([]string{"true"}, slices.Repeat([]string{"x"}, 5000)...)...)
	b.exec(keyA, "true", strings.Repeat("é", 50000))
	for _, e := range b.ran("a") {
		if n := len(fmt.Sprint(e.Argv)); n > maxHistoryArgs+64 || n < 512 {
			t.Errorf("%d bytes of a command line are kept", n)
		}
	}
}

// TestBudget: a tenant that has used up its day is refused by name, and still is after a restart.
func TestBudget(t *testing.T) {
	b := newBench(t)
	b.policy.Tenants = map[string]policy.Tenant{"t": {Daily: policy.Budget{Execs: 2}}}
	b.start()
	b.exec(keyA, "true")
	b.exec(keyA, "true")
	check := func() {
		t.Helper()
		var quota *policy.QuotaError
		_, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}})
		if !errors.As(err, &quota) || quota.Resource != "execs_per_day" || quota.Limit != "2" || quota.InUse != "2" || !strings.Contains(err.Error(), "tenants.t.daily.execs") {
			t.Errorf("%v", err)
		}
		if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}}); !errors.As(err, &quota) {
			t.Errorf("%v", err)
		}
		if use, _ := b.Quota("t"); use.Execs != 0 || use.Processes != 0 {
			t.Errorf("refused, and in use: %+v", use)
		}
	}
	check()
	b.restart()
	check()
	if _, err := b.Exec(ctx, me, Key{"other", "a"}, &policy.Request{}, Exec{Args: []string{"true"}}); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

// Probes count, and stop when the budget of the day is used up, which says nothing about the process. They
// are not in the history.
func TestBudgetOfProbes(t *testing.T) {
	for _, r := range []*spec.Ready{
		{Command: []string{"exit", "0"}, LiveEvery: seconds(10)},
		{HTTP: "80/", LiveEvery: seconds(10)},
	} {
		bubble(t, func(b *bench) {
			b.Close(ctx, false)
			b.policy.Tenants = map[string]policy.Tenant{"t": {Daily: policy.Budget{Execs: 5}}}
			b.start()
			b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}})
			b.boxOf(keyA).Serve(func(_, _ string) string { return "HTTP/1.1 200 OK\r\n\r\n" })
			ran := int64(0)
			b.host.SetHook(func(_ context.Context, op, _ string) error {
				if op == "start" {
					ran++
				}
				return nil
			})
			b.supervise(ProcessSettings{Ready: r, Restart: "on-failure"}, "serve")
			want, execs := int64(5), int64(5)
			if r.HTTP != "" { // no command of the tenant
				want, execs = 31, 0
			}
			time.Sleep(3 * time.Minute)
			b.restart()
			time.Sleep(2*time.Minute + time.Second)
			b.wantState(ProcessReady)
			if r.HTTP == "" && ran != want || ran < want {
				t.Errorf("%+v: %d probes, want %d", r, ran, want)
			}
			var u history.UsageQuery
			u.By.Session = true
			list, err := b.Usage(u)
			if err != nil || len(list) != 1 || list[0].Execs != execs || list[0].Processes != 0 || list[0].Session != "a" {
				t.Errorf("%+v: %+v, %v", r, list, err)
			}
			if got := b.ran("a"); len(got) != 0 {
				t.Errorf("in the history: %+v", got)
			}
		})
	}
	// A process that cannot be probed does not become ready, and the reason is named.
	bubble(t, func(b *bench) {
		b.Close(ctx, false)
		b.policy.Tenants = map[string]policy.Tenant{"t": {Daily: policy.Budget{Execs: 5}}}
		b.start()
		p := b.supervise(ProcessSettings{Ready: &spec.Ready{Command: []string{"exit", "1"}, Timeout: seconds(30)}}, "serve")
		_, err := p.WaitReady(ctx)
		if failed, ok := errors.AsType[*NotReadyError](err); !ok || !strings.Contains(failed.Failure, "execs_per_day") {
			t.Error(err)
		}
	})
}

// TestHistoryIsFirst: whoever is told that a command has ended finds it in the history.
func TestHistoryIsFirst(t *testing.T) {
	b := open(t)
	n := 0
	e := Exec{Args: []string{"true"}, Ended: func(ExecResult) { n = len(b.ran("a")) }}
	if _, err := b.Exec(ctx, me, keyA, &policy.Request{}, e); err != nil || n != 1 {
		t.Errorf("%d entries, %v", n, err)
	}
}

// TestHistoryOfLostBox: a command and a process that end with their box are in the history, each once.
func TestHistoryOfLostBox(t *testing.T) {
	b := open(t)
	p := b.launch(keyA, "web", "serve")
	if res := b.exec(keyA, "die"); res.Verdict != engine.BoxLost {
		t.Fatalf("%+v", res)
	}
	await(t, p.Done(), "the end")
	b.restart()
	want := []string{"die: box-lost", "web serve: box-lost"}
	got := strings.Split(b.ranText("a"), ", ")
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// A process whose box is lost while no daemon runs.
	b.launch(keyB, "web", "serve")
	box := b.boxOf(keyB)
	b.crash()
	box.Die()
	b.start()
	for range 2 {
		if got := b.ranText("b"); got != "web serve: box-lost" {
			t.Errorf("%q", got)
		}
		b.restart()
	}
}

// used is the usage of tenant t by session.
func (b *bench) used(session string) (u history.Usage) {
	b.t.Helper()
	list, err := b.history.Usage(history.UsageQuery{Tenant: "t", By: struct{ Profile, User, Session, Day bool }{User: true, Session: true}})
	must(b.t, err)
	for _, row := range list {
		if row.Session == session {
			return row
		}
	}
	return u
}

// aged moves what the meter of a session knows back by d, as if that time had passed.
func (b *bench) aged(key Key, d time.Duration) {
	s := b.session(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &s.meter
	m.since, m.at, m.looked = m.since.Add(-d), m.at.Add(-d), m.looked.Add(-d)
}

// TestMeter: the life of a box and its memory are counted once, over restarts, replaced boxes and the
// end of the session.
func TestMeter(t *testing.T) {
	near := func(got, want float64, what string) {
		t.Helper()
		if got < want || got > want+1 { // a second for the test itself
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	b := open(t)
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Labels: spec.Labels{"user": "ann"}}})
	box := b.boxOf(keyA)
	box.Memory.Store(1 << 30)
	b.aged(keyA, 10*time.Second)
	b.session(keyA).count(nil) // whether or not its life is counted meanwhile,
	b.session(keyA).look()     // what it was before the first look is not known
	b.aged(keyA, 10*time.Second)
	box.Memory.Store(3 << 30)
	b.session(keyA).look()
	b.measureBoxes(true)
	u := b.used("a")
	near(float64(u.Lived)/1000, 20, "life")
	near(u.GiBSeconds(), 10+20, "memory")
	if u.User != "ann" || u.Execs != 0 {
		t.Errorf("%+v", u)
	}
	// Nobody looks while it is counted for somebody who asks.
	box.Memory.Store(1 << 40)
	b.aged(keyA, 10*time.Second)
	if _, err := b.Usage(history.UsageQuery{}); err != nil {
		t.Fatal(err)
	}
	u = b.used("a")
	near(float64(u.Lived)/1000, 30, "life")
	near(u.GiBSeconds(), 60, "memory")
	box.Memory.Store(3 << 30)

	// A successor continues where the last counting was, also if it was killed.
	b.restart()
	before := b.used("a").Lived
	if m := &b.session(keyA).meter; m.box == nil || time.Since(m.since) > 30*time.Second {
		t.Fatalf("%+v", m)
	}
	b.countBoxes()
	near(float64(b.used("a").Lived)/1000, 30, "life after a restart")
	if b.used("a").Lived < before {
		t.Error("it has shrunk")
	}
	// A box that was never counted counts from when it was made.
	must(t, b.history.Append(history.Entry{Tenant: "t", Session: "a", Period: true, Gone: true}))
	must(t, b.history.Close())
	b.restart()
	s := b.session(keyA)
	if since := s.meter.since.Sub(s.record.BoxSince).Abs(); s.record.BoxSince.IsZero() || since > time.Second {
		t.Errorf("it counts from %v after its box was made", since)
	}

	// A lost box is counted until its loss, and its successor on.
	b.ensure(keyB, policy.Request{})
	b.aged(keyB, 20*time.Second)
	b.boxOf(keyB).Die()
	b.eventually("the loss is counted", func() bool { return b.used("b").Lived >= 20000 })
	b.exec(keyB, "true")
	b.aged(keyB, 5*time.Second)
	must(t, b.Remove(ctx, me, keyB))
	near(float64(b.used("b").Lived)/1000, 25, "life of a removed session")
	if !b.history.Metered("t", "b", "x").IsZero() {
		t.Error("a meter is left")
	}
}

// TestUnsampledMemory: a program that nobody has looked at counts with its peak.
func TestUnsampledMemory(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	s, peak := b.session(keyA), int64(2<<30)
	r := engine.Receipt{Wall: 3 * time.Second, MemoryPeak: &peak}
	if got := s.unsampled(time.Now(), &r); got != history.MemoryTime(2<<30, 3*time.Second) {
		t.Errorf("%d", got)
	}
	if got := s.unsampled(time.Now(), &engine.Receipt{Wall: time.Second}); got != 0 {
		t.Errorf("without a figure: %d", got)
	}
	started := time.Now()
	s.look()
	if got := s.unsampled(started, &r); got != 0 {
		t.Errorf("seen: %d", got)
	}
	s.count(s.meter.box)
	if got := s.unsampled(started, &r); got != 0 {
		t.Errorf("seen, and its box has ended: %d", got)
	}
	if got := s.unsampled(time.Now(), &r); got == 0 {
		t.Error("not seen, and its box has ended")
	}
}

// Whoever reports the loss of a box late does not end the measurement of the next one.
func TestMeterOfNextBox(t *testing.T) {
	b := newBench(t)
	lost, reported := make(chan struct{}), make(chan struct{})
	b.audit.told = func(e audit.Entry) {
		if e.Action == "box-lost" {
			close(lost)
			<-reported
		}
	}
	b.start()
	b.ensure(keyA, policy.Request{})
	first := b.get(keyA).Box
	b.host.Box(first).Die()
	await(t, lost, "the loss")
	b.exec(keyA, "true")
	s := b.session(keyA)
	measured := func() engine.LiveBox {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.meter.box
	}
	if next := measured(); next == nil || next.ID() == first {
		t.Fatalf("%v is measured", next)
	}
	close(reported)
	must(t, b.Close(ctx, false)) // waits for the report
	if measured() == nil {
		t.Error("the box is not measured any more")
	}
}

// What a process has used is counted once if its box is removed under it, also where the daemon dies at
// any step of that.
func TestUsageOfProcessesOfARemovedBox(t *testing.T) {
	for _, op := range []string{"", "kill", "remove", "removed"} { // the step at which the daemon dies
		b := open(t)
		p := b.launch(keyA, "p", "serve")
		b.host.Box(p.View().Box).Process(p.View().Key).Use(3 * time.Second)
		if op != "" {
			b.crashDuring(op, func() { b.Remove(ctx, me, keyA) })
			b.start()
		} else {
			must(t, b.Remove(ctx, me, keyA))
		}
		b.eventually("the removal", func() bool { return len(b.List("")) == 0 && len(b.host.IDs()) == 0 })
		if u := b.UsageTotals(); len(u) != 1 || u[0].Processes != 1 || u[0].CPU != 3*time.Second {
			t.Errorf("after dying at %q: %+v", op, u)
		}
	}

	// A persistent session whose daemon stops.
	b := open(t)
	p := b.supervise(ProcessSettings{Restart: "on-failure"}, "serve")
	b.truth().Use(3 * time.Second)
	must(t, b.Close(ctx, true))
	if v := p.View(); v.State != ProcessFailed || v.Verdict != engine.BoxLost || v.Signal != 0 || !v.RestartAt.IsZero() {
		t.Errorf("%+v", v)
	}
	b.start()
	if u := b.UsageTotals(); len(u) != 1 || u[0].Processes != 1 || u[0].CPU != 3*time.Second {
		t.Errorf("after a stop of the daemon: %+v", u)
	}
}

// crashDuring calls fn, and kills the manager at an operation of its engine.
func (b *bench) crashDuring(op string, fn func()) {
	reached, ended := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(reached) })
	b.host.SetHook(func(ctx context.Context, at, _ string) error {
		if at != op {
			return nil
		}
		once()
		<-ctx.Done()
		return ctx.Err()
	})
	go func() {
		defer close(ended)
		fn()
	}()
	await(b.t, reached, op)
	b.crash()
	<-ended
	b.host.SetHook(nil)
}
