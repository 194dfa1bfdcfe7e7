package session

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/enginetest"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// supervise starts a process with these settings, in a session that does not expire.
func (b *bench) supervise(settings ProcessSettings, args ...string) *Process {
	b.t.Helper()
	r := &policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}}
	if _, err := b.Start(ctx, me, keyA, r, ProcessSpec{ID: "p", Args: args, ProcessSettings: settings}); err != nil {
		b.t.Fatal(err)
	}
	p, err := b.Process(keyA, "p")
	must(b.t, err)
	return p
}

// truth is the host's view of the process that has the ID now.
func (b *bench) truth() *enginetest.Process {
	b.t.Helper()
	v := b.now()
	return b.host.Box(v.Box).Process(v.Key)
}

// now is the process that has the ID now.
func (b *bench) now() ProcessView {
	b.t.Helper()
	p, err := b.Process(keyA, "p")
	must(b.t, err)
	return p.View()
}

func (b *bench) wantState(want ProcessState) {
	b.t.Helper()
	synctest.Wait()
	if v := b.now(); v.State != want {
		b.t.Errorf("%s (%s), want %s", v.State, v.Failure, want)
	}
}

func seconds(n int) spec.Duration { return spec.Duration(time.Duration(n) * time.Second) }

var onPort = &spec.Ready{Port: 80, Timeout: seconds(30), LiveEvery: seconds(10)}

func (b *bench) listen(ports ...int) {
	var list []engine.Port
	for _, p := range ports {
		list = append(list, engine.Port{Protocol: "tcp6", Address: "::", Port: p})
	}
	b.boxOf(keyA).Listen(list...)
}

func TestReadyByPort(t *testing.T) {
	bubble(t, func(b *bench) {
		sub := b.Subscribe("t", 0)
		defer sub.Close()
		p := b.supervise(ProcessSettings{Ready: onPort}, "serve")
		time.Sleep(20 * time.Second)
		b.wantState(ProcessStarting)
		b.boxOf(keyA).Listen(engine.Port{Protocol: "udp", Port: 80}, engine.Port{Protocol: "tcp", Port: 8080})
		time.Sleep(2 * time.Second)
		b.wantState(ProcessStarting)
		b.listen(80)
		got, err := p.WaitReady(ctx)
		if err != nil || got != p || p.View().State != ProcessReady || p.View().ReadyAt.Sub(p.View().StartedAt) > 23*time.Second {
			t.Errorf("%+v, %v", p.View(), err)
		}
		time.Sleep(time.Hour)
		b.wantState(ProcessReady)
		b.listen()
		time.Sleep(25 * time.Second)
		b.wantState(ProcessReady) // two failures
		time.Sleep(6 * time.Second)
		b.wantState(ProcessUnready)
		b.listen(80)
		time.Sleep(10 * time.Second)
		b.wantState(ProcessReady)
		must(t, p.Stop(ctx, me, StopOptions{}))
		b.wantState(ProcessStopped)
		if v := p.View(); v.Failure != "" {
			t.Errorf("a stopped process has the failure %q", v.Failure)
		}
		want := []EventType{EventCreated, EventProcessStarted, EventProcessReady, EventProcessUnready, EventProcessReady, EventProcessStopped}
		for _, w := range want {
			if e := <-sub.C; e.Type != w {
				t.Errorf("%+v, want %s", e, w)
			}
		}
	})
}

func TestReadyByLine(t *testing.T) {
	bubble(t, func(b *bench) {
		p := b.supervise(ProcessSettings{Ready: &spec.Ready{Line: "Listening on"}}, "say", strings.Repeat("x", 60_000)+"\nListening on 80\n")
		if _, err := p.WaitReady(ctx); err != nil || p.View().State != ProcessReady {
			t.Errorf("%+v, %v", p.View(), err)
		}
		b.restart() // it stays so, whatever becomes of its output
		if v := b.now(); v.State != ProcessReady || v.ReadyAt.IsZero() {
			t.Errorf("after a restart: %+v", v)
		}
	})
}

// A program that writes its line and ends at once was ready.
func TestReadyBeforeItsEnd(t *testing.T) {
	bubble(t, func(b *bench) {
		p := b.supervise(ProcessSettings{Ready: &spec.Ready{Line: "done"}}, "say", "done")
		b.truth().Exit(0)
		await(t, p.Done(), "its end")
		if v := p.View(); v.ReadyAt.IsZero() || v.Failure != "" || v.State != ProcessExited {
			t.Errorf("%+v", v)
		}
		if _, err := p.WaitReady(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestReadyByHTTP(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.1 200 OK\r\n\r\nfine":                       "",
		"HTTP/1.0 302 Found\r\nContent-Length: 100\r\n\r\n": "",
		"HTTP/1.1 503 Service Unavailable\r\n\r\n":          "GET /up?x on port 81: status 503",
		"SSH-2.0-OpenSSH\r\n":                               "no HTTP answer",
		"":                                                  "no HTTP answer",
		"HTTP/1.1 200 OK\r\n" + strings.Repeat("x: y\r\n", 9999): "no HTTP answer",
	} {
		bubble(t, func(b *bench) {
			b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}})
			b.boxOf(keyA).Serve(func(port, request string) string {
				if port != "81" || !strings.HasPrefix(request, "GET /up?x HTTP/1.0\r\n") {
					t.Errorf("port %s: %q", port, request)
				}
				return answer
			})
			p := b.supervise(ProcessSettings{Ready: &spec.Ready{HTTP: "81/up?x", Timeout: seconds(3)}}, "serve")
			if _, err := p.WaitReady(ctx); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%.40q: %v, want %q", answer, err, want)
			}
		})
	}
}

func TestReadyByCommand(t *testing.T) {
	bubble(t, func(b *bench) {
		user := &engine.User{UID: 7, GID: 8}
		_, err := b.Start(ctx, me, keyA, &policy.Request{}, ProcessSpec{ID: "p", Args: []string{"serve"}, User: user, Env: []string{"A=b"}, Dir: "/tmp",
			ProcessSettings: ProcessSettings{Ready: &spec.Ready{Command: []string{"exit", "0"}}}})
		must(t, err)
		p, _ := b.Process(keyA, "p")
		if _, err := p.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		if cmd := b.boxOf(keyA).Last(); *cmd.User != *user || cmd.Dir != "/tmp" || len(cmd.Env) != 1 {
			t.Errorf("%+v", cmd)
		}
		if view := b.get(keyA); view.Execs != 0 {
			t.Errorf("%d commands", view.Execs)
		}
	})
}

// Whatever a probe does, it ends, and the process with it when its time is over.
func TestNeverReady(t *testing.T) {
	for want, r := range map[string]*spec.Ready{
		"nothing listens on TCP port 80":         {Port: 80},
		`no line of its output contains "ready"`: {Line: "ready"},
		"connection refused":                     {HTTP: "80/"},
		"exited with 4":                          {Command: []string{"exit", "4"}},
		"exited with 1: no":                      {Command: []string{"err", "no"}},
		"ended: timeout":                         {Command: []string{"wait"}},
		"not found":                              {Command: []string{"missing"}},
	} {
		bubble(t, func(b *bench) {
			r.Timeout = seconds(7)
			began := time.Now()
			p := b.supervise(ProcessSettings{Ready: r}, "say", "starting…\nE: no configuration\n")
			_, err := p.WaitReady(ctx)
			failed, ok := errors.AsType[*NotReadyError](err)
			if !ok || !strings.HasPrefix(failed.Failure, "not ready within 7s: ") || !strings.Contains(failed.Failure, want) ||
				!strings.HasSuffix(failed.Output, "E: no configuration\n") {
				t.Errorf("%+v: %+v, %v", r, failed, err)
			}
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("%+v: took %v", r, took)
			}
			if v := p.View(); v.State != ProcessFailed || v.Signal == 0 || v.Failure == "" {
				t.Errorf("%+v", v)
			}
		})
	}
}

// A launcher that is away says nothing about a process, also where its time is over meanwhile.
func TestReadyWithoutLauncher(t *testing.T) {
	for _, away := range []int{20, 40} { // seconds, of the 30 that the process has
		bubble(t, func(b *bench) {
			began := time.Now()
			b.host.SetHook(func(_ context.Context, op, _ string) error {
				if op == "start" && time.Since(began) < time.Duration(away)*time.Second {
					time.Sleep(3 * time.Second) // the patience of an engine
					return engine.ErrNoLauncher
				}
				return nil
			})
			p := b.supervise(ProcessSettings{Ready: &spec.Ready{Command: []string{"true"}, Timeout: seconds(30)}}, "serve")
			if _, err := p.WaitReady(ctx); err != nil || p.View().ReadyAt.Sub(p.View().StartedAt) < time.Duration(away)*time.Second {
				t.Errorf("away for %d s: %v, %+v", away, err, p.View())
			}
		})
	}
	bubble(t, func(b *bench) { // the process fails all the same
		began := time.Now()
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "start" && time.Since(began) < 40*time.Second {
				return engine.ErrNoLauncher
			}
			return nil
		})
		p := b.supervise(ProcessSettings{Ready: &spec.Ready{Command: []string{"exit", "3"}, Timeout: seconds(30)}}, "serve")
		_, err := p.WaitReady(ctx)
		if took := p.View().EndedAt.Sub(p.View().StartedAt); err == nil || !strings.Contains(err.Error(), "exited with 3") || took > 50*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestEndBeforeReady(t *testing.T) {
	bubble(t, func(b *bench) {
		p := b.supervise(ProcessSettings{Ready: onPort}, "say", "bad flag\n")
		b.truth().Exit(0)
		_, err := p.WaitReady(ctx)
		if failed, ok := errors.AsType[*NotReadyError](err); !ok || failed.Failure != "exited with 0 before it was ready" || failed.Output != "bad flag\n" {
			t.Errorf("%v", err)
		}
		if v := p.View(); v.State != ProcessExited || *v.ExitCode != 0 {
			t.Errorf("%+v", v)
		}
	})
}

// The probe of a restarted daemon goes on, with what is left of the time.
func TestProbeGoesOn(t *testing.T) {
	bubble(t, func(b *bench) {
		b.supervise(ProcessSettings{Ready: onPort}, "serve")
		time.Sleep(20 * time.Second)
		b.restart()
		b.wantState(ProcessStarting)
		time.Sleep(5 * time.Second)
		b.listen(80)
		time.Sleep(2 * time.Second)
		b.wantState(ProcessReady)
		b.restart()
		b.listen()
		time.Sleep(31 * time.Second)
		b.wantState(ProcessUnready)
		b.restart()
		b.wantState(ProcessUnready)
		b.listen(80)
		time.Sleep(10 * time.Second)
		b.wantState(ProcessReady)
	})
	bubble(t, func(b *bench) {
		b.supervise(ProcessSettings{Ready: onPort}, "serve")
		b.crash()
		time.Sleep(time.Hour)
		b.start()
		b.wantState(ProcessStarting) // one attempt is left
		time.Sleep(6 * time.Second)
		b.wantState(ProcessFailed)
	})
}

func TestRestartOnFailure(t *testing.T) {
	bubble(t, func(b *bench) {
		began := time.Now()
		p := b.supervise(ProcessSettings{Restart: "on-failure:3"}, "say", "oops\n")
		for i, at := range []int{0, 1, 3, 7} { // seconds
			time.Sleep(time.Until(began.Add(time.Duration(at)*time.Second + 100*time.Millisecond)))
			b.wantState(ProcessRunning)
			if v := b.now(); v.Restarts != i || (v.Failure == "exited with 9") != (i > 0) {
				t.Errorf("%d: %+v", i, v)
			}
			b.truth().Exit(9)
			synctest.Wait()
			if v := b.now(); i < 3 && (v.State != ProcessRestarting || v.FailureOutput != "oops\n" || *v.ExitCode != 9) {
				t.Errorf("%d: %+v", i, v)
			}
			if use, _ := b.Quota("t"); (use.Processes == 1) != (i < 3) {
				t.Errorf("after end %d, %d processes count", i+1, use.Processes)
			}
		}
		time.Sleep(time.Hour)
		if v := b.now(); v.State != ProcessExited || v.Failure != "exited with 9; given up after 3 of 3 restarts" {
			t.Errorf("%+v", v)
		}
		if p == nil || !isDone(p.Gone()) {
			t.Error("the output of the first run is kept")
		}
	})
}

// A process that waits for its restart keeps its place in the limits, which only one that replaces it
// gets.
func TestWaitingCounts(t *testing.T) {
	bubble(t, func(b *bench) {
		b.Close(ctx, false)
		b.policy.TenantDefaults.Processes = 1
		b.start()
		count := func(want int64) {
			t.Helper()
			synctest.Wait()
			if use, _ := b.Quota("t"); use.Processes != want {
				t.Errorf("%d processes count, want %d", use.Processes, want)
			}
		}
		start := func(id string, args ...string) error {
			_, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: id, Args: args})
			return err
		}
		b.supervise(ProcessSettings{Restart: "on-failure:100"}, "exit", "1")
		for range 3 {
			count(1)
			if err := start("other", "serve"); !errors.Is(err, policy.ErrQuota) {
				t.Errorf("another process: %v", err)
			}
			time.Sleep(2 * time.Second)
			b.restart()
		}
		if err := start("p", "missing"); !errors.Is(err, engine.ErrNotFound) {
			t.Error(err)
		}
		b.wantState(ProcessRestarting)
		count(1)
		must(t, start("p", "serve"))
		count(1)
		p, _ := b.Process(keyA, "p")
		must(t, p.Stop(ctx, me, StopOptions{}))
		count(0)
		for _, end := range []func(p *Process) error{
			func(p *Process) error { return p.Stop(ctx, me, StopOptions{}) },
			func(p *Process) error { return p.Remove(ctx, me) },
			func(p *Process) error { b.host.Kill(p.View().Box); return nil },
			func(p *Process) error { b.crash(); b.host.Kill(p.View().Box); b.start(); return nil },
			func(p *Process) error { return b.Remove(ctx, me, keyA) },
		} {
			p := b.supervise(ProcessSettings{Restart: "on-failure"}, "exit", "1")
			count(1)
			must(t, end(p))
			time.Sleep(time.Minute)
			count(0)
		}
	})
}

// What a restart needs is kept no longer than a restart may come.
func TestCommandIsDropped(t *testing.T) {
	bubble(t, func(b *bench) {
		kept := func() bool {
			t.Helper()
			synctest.Wait()
			p, _ := b.Process(keyA, "p")
			memory := p.record.Kept != nil
			b.crash()
			var r processRecord
			b.database(func(tx *bbolt.Tx) (err error) {
				key := processKey(keyA, "p")
				r, err = decodeProcess(key, tx.Bucket(processBucket).Get(key))
				return err
			})
			if memory != (r.Kept != nil) {
				t.Errorf("in memory %v, on disk %v", memory, r.Kept != nil)
			}
			b.start() // the record can be read
			return r.Kept != nil
		}
		b.supervise(ProcessSettings{Restart: "on-failure:1"}, "exit", "1")
		if !kept() {
			t.Error("nothing is kept for the restart")
		}
		time.Sleep(time.Minute)
		if b.wantState(ProcessExited); kept() {
			t.Error("kept after the last restart")
		}
		p := b.supervise(ProcessSettings{Restart: "on-failure:1"}, "exit", "1")
		synctest.Wait()
		must(t, p.Stop(ctx, me, StopOptions{}))
		if kept() {
			t.Error("kept after a stop")
		}
		b.supervise(ProcessSettings{Restart: "on-failure:1"}, "exit", "0")
		if kept() {
			t.Error("kept after a good end")
		}
		b.supervise(ProcessSettings{Ready: onPort}, "serve")
		if kept() {
			t.Error("kept for a probe that does not need it")
		}
		b.host.Kill(b.now().Box)
		b.supervise(ProcessSettings{Restart: "on-failure:1"}, "serve")
		b.host.Kill(b.now().Box)
		if kept() {
			t.Error("kept after the loss of the box")
		}
	})
}

// Only people use a session: restarts do not put off its idle TTL.
func TestRestartIsNoUse(t *testing.T) {
	bubble(t, func(b *bench) {
		b.supervise(ProcessSettings{Restart: "on-failure:5"}, "exit", "1")
		used := b.get(keyA).LastUsed
		time.Sleep(10 * time.Second)
		if v := b.now(); v.Restarts != 3 || !b.get(keyA).LastUsed.Equal(used) {
			t.Errorf("%d restarts; used at %v, then at %v", v.Restarts, used, b.get(keyA).LastUsed)
		}
		time.Sleep(time.Hour) // the end for good counts, as that of any process
		if v := b.now(); b.get(keyA).LastUsed.Sub(v.EndedAt).Abs() > time.Second {
			t.Errorf("ended at %v, used at %v", v.EndedAt, b.get(keyA).LastUsed)
		}
	})
}

// A good end is no failure, nor is a stop; a long run lets earlier restarts be forgotten.
func TestNoRestart(t *testing.T) {
	bubble(t, func(b *bench) {
		b.supervise(ProcessSettings{Restart: "on-failure"}, "serve")
		b.truth().Exit(1)
		time.Sleep(time.Second + forgiven)
		b.truth().Exit(1)
		time.Sleep(2 * time.Second)
		b.wantState(ProcessRunning)
		if v := b.now(); v.Restarts != 1 {
			t.Errorf("%d restarts count", v.Restarts)
		}
		p, _ := b.Process(keyA, "p")
		must(t, p.Stop(ctx, me, StopOptions{}))
		time.Sleep(time.Hour)
		b.wantState(ProcessStopped)
		b.supervise(ProcessSettings{Restart: "on-failure"}, "exit", "0")
		time.Sleep(time.Hour)
		b.wantState(ProcessExited)
		b.supervise(ProcessSettings{Restart: "no"}, "exit", "1")
		time.Sleep(time.Hour)
		if b.wantState(ProcessExited); b.now().Failure != "" {
			t.Errorf("%+v", b.now())
		}
	})
}

// A process that waits for its restart can be stopped, removed and replaced.
func TestEndOfRestarts(t *testing.T) {
	waiting := func(b *bench) *Process {
		p := b.supervise(ProcessSettings{Restart: "on-failure"}, "exit", "1")
		b.wantState(ProcessRestarting)
		return p
	}
	bubble(t, func(b *bench) {
		p := waiting(b)
		must(t, p.Stop(ctx, me, StopOptions{}))
		time.Sleep(time.Hour)
		if v := b.now(); v.State != ProcessExited || v.Failure != "exited with 1; not restarted: it was stopped" {
			t.Errorf("%+v", v)
		}
		b.restart()
		b.wantState(ProcessExited)
	})
	bubble(t, func(b *bench) {
		must(t, waiting(b).Remove(ctx, me))
		time.Sleep(time.Hour)
		if list, err := b.Processes(keyA); err != nil || len(list) != 0 {
			t.Errorf("%+v, %v", list, err)
		}
	})
	bubble(t, func(b *bench) {
		old := waiting(b)
		if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"missing"}}); err == nil {
			t.Error("a missing program runs")
		}
		b.wantState(ProcessRestarting) // a start that fails changes nothing
		next := b.launch(keyA, "p", "serve")
		if _, err := old.WaitReady(ctx); err != nil { // it has no Ready
			t.Error(err)
		}
		must(t, old.Stop(ctx, me, StopOptions{}))
		time.Sleep(time.Hour)
		if b.wantState(ProcessRunning); next.View().Key != b.now().Key {
			t.Error("the old process took the ID back")
		}
	})
	bubble(t, func(b *bench) {
		waiting(b)
		must(t, b.Remove(ctx, me, keyA))
	})
}

// A stop through the handle of a process that was restarted since ends its successor.
func TestStopReachesTheRestarted(t *testing.T) {
	bubble(t, func(b *bench) {
		first := b.supervise(ProcessSettings{Restart: "on-failure"}, "serve")
		for range 2 {
			b.truth().Exit(1)
			time.Sleep(3 * time.Second)
		}
		b.wantState(ProcessRunning)
		must(t, first.Stop(ctx, me, StopOptions{}))
		b.wantState(ProcessStopped)
		must(t, first.Remove(ctx, me))
		if _, err := b.Process(keyA, "p"); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	})
}

// A successor of the manager restarts what waits for that, once.
func TestRestartSurvives(t *testing.T) {
	bubble(t, func(b *bench) {
		b.supervise(ProcessSettings{Restart: "on-failure", Ready: onPort}, "exit", "1")
		b.wantState(ProcessRestarting)
		b.crash()
		time.Sleep(time.Minute)
		b.start()
		time.Sleep(time.Second)
		if v := b.now(); v.Restarts != 1 || v.State != ProcessRestarting || v.Failure != "exited with 1 before it was ready" {
			t.Errorf("%+v", v)
		}
		if n := len(b.boxOf(keyA).Processes()); n != 1 {
			t.Errorf("%d processes in the box", n)
		}
	})
	bubble(t, func(b *bench) { // the box is lost meanwhile
		b.supervise(ProcessSettings{Restart: "on-failure"}, "exit", "1")
		synctest.Wait()
		box := b.get(keyA).Box
		b.crash()
		b.host.Kill(box)
		b.start()
		if b.wantState(ProcessExited); !strings.HasSuffix(b.now().Failure, "; not restarted: its box is lost") {
			t.Errorf("%+v", b.now())
		}
	})
	bubble(t, func(b *bench) { // the same with a manager that is there
		b.supervise(ProcessSettings{Restart: "on-failure"}, "exit", "1")
		synctest.Wait()
		b.host.Kill(b.get(keyA).Box)
		time.Sleep(time.Minute)
		b.wantState(ProcessExited)
	})
}

// Attempts that fail before the program runs count, too.
func TestRestartThatFails(t *testing.T) {
	bubble(t, func(b *bench) {
		b.supervise(ProcessSettings{Restart: "on-failure:4"}, "serve")
		b.truth().Exit(1)
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "launch" {
				return errors.New("injected")
			}
			return nil
		})
		time.Sleep(4 * time.Second)
		if b.wantState(ProcessRestarting); b.now().Restarts != 2 {
			t.Errorf("%+v", b.now())
		}
		b.restart()
		time.Sleep(time.Hour)
		if v := b.now(); v.State != ProcessExited || !strings.Contains(v.Failure, "injected; given up after 4 of 4 restarts") {
			t.Errorf("%+v", v)
		}
	})
}

// An attempt that is refused for what others have used says nothing about the process: it does not count, and
// the process waits for as long as it takes.
func TestRestartThatIsRefused(t *testing.T) {
	bubble(t, func(b *bench) {
		b.Close(ctx, false)
		b.policy.Tenants = map[string]policy.Tenant{"t": {Daily: policy.Budget{Execs: 1}}}
		b.start()
		b.supervise(ProcessSettings{Restart: "on-failure:1"}, "serve")
		b.truth().Exit(1)
		time.Sleep(time.Hour)
		if b.wantState(ProcessRestarting); b.now().Restarts != 0 || !strings.Contains(b.now().Failure, "execs_per_day") {
			t.Errorf("%+v", b.now())
		}
		if b.audit.has("start", "deny") {
			t.Error("each attempt is in the audit log")
		}
		b.restart()
		time.Sleep(time.Until(time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1)) + 2*lastBackOff)
		if b.wantState(ProcessRunning); b.now().Restarts != 1 {
			t.Errorf("%+v", b.now())
		}
		b.truth().Exit(1)
		if b.wantState(ProcessExited); !strings.Contains(b.now().Failure, "given up after 1 of 1 restarts") {
			t.Errorf("%+v", b.now())
		}
	})
	bubble(t, func(b *bench) { // the launcher is away
		b.supervise(ProcessSettings{Restart: "on-failure:1"}, "serve")
		b.truth().Exit(1)
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "launch" {
				return engine.ErrNoLauncher
			}
			return nil
		})
		time.Sleep(time.Hour)
		b.wantState(ProcessRestarting)
		b.host.SetHook(nil)
		time.Sleep(2 * lastBackOff)
		b.wantState(ProcessRunning)
	})
}

// The session of a process that waits for its restart does not expire.
func TestWaitingKeepsTheSession(t *testing.T) {
	bubble(t, func(b *bench) {
		r := &policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: ptr(seconds(5))}}}
		_, err := b.Start(ctx, me, keyA, r, ProcessSpec{ID: "p", Args: []string{"exit", "1"}, ProcessSettings: ProcessSettings{Restart: "on-failure:6"}})
		must(t, err)
		time.Sleep(30 * time.Second) // the last pause is 32 s
		b.wantState(ProcessRestarting)
		time.Sleep(30 * time.Second)
		b.wantState(ProcessRestarting)
		time.Sleep(20 * time.Second)
		if !b.gone(keyA) {
			t.Errorf("%+v", b.get(keyA))
		}
	})
}

// WaitReady follows a process over its restarts, and a process that no longer answers is
// restarted.
func TestWaitReadyFollows(t *testing.T) {
	bubble(t, func(b *bench) {
		p := b.supervise(ProcessSettings{Restart: "on-failure", Ready: onPort}, "say", "first\n")
		done := make(chan error, 1)
		go func() {
			got, err := p.WaitReady(ctx)
			if err == nil && got == p {
				err = errors.New("it is the first one")
			}
			done <- err
		}()
		synctest.Wait()
		b.truth().Exit(1)
		time.Sleep(5 * time.Second)
		b.wantState(ProcessStarting)
		b.listen(80)
		must(t, <-done)
		if v := b.now(); v.Failure != "" || v.Restarts != 1 {
			t.Errorf("%+v", v)
		}
		b.listen()
		time.Sleep(31 * time.Second)
		if b.wantState(ProcessRestarting); !strings.HasPrefix(b.now().Failure, "not live, 3 probes in a row failed: ") {
			t.Errorf("%+v", b.now())
		}
	})
	bubble(t, func(b *bench) { // in vain
		p := b.supervise(ProcessSettings{Restart: "on-failure:2", Ready: onPort}, "exit", "1")
		_, err := p.WaitReady(ctx)
		if failed, ok := errors.AsType[*NotReadyError](err); !ok || !strings.HasSuffix(failed.Failure, "given up after 2 of 2 restarts") {
			t.Error(err)
		}
		p = b.supervise(ProcessSettings{Restart: "on-failure:2", Ready: onPort}, "exit", "1")
		synctest.Wait()
		go b.launch(keyA, "p", "serve") // it is replaced
		if _, err := p.WaitReady(ctx); err == nil {
			t.Error("it is ready")
		}
	})
}

func TestSupervisionIsChecked(t *testing.T) {
	b := open(t)
	for field, settings := range map[string]ProcessSettings{
		"ready":      {Ready: &spec.Ready{}},
		"ready.port": {Ready: &spec.Ready{Port: 70000}},
		"restart":    {Restart: "always"},
	} {
		_, err := b.Start(ctx, me, keyA, &policy.Request{}, ProcessSpec{ID: "p", Args: []string{"serve"}, ProcessSettings: settings})
		if bad, ok := errors.AsType[*engine.FieldError](err); !ok || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	_, err := b.Start(ctx, me, keyA, &policy.Request{}, ProcessSpec{ID: "p", Args: []string{"serve", strings.Repeat("x", maxKeptCommand)}, ProcessSettings: ProcessSettings{Restart: "on-failure"}})
	if bad, ok := errors.AsType[*engine.FieldError](err); !ok || bad.Field != "argv" {
		t.Error(err)
	}
	if len(b.List("t")) != 0 {
		t.Error("a session was made")
	}
}

// Any answer of a program is a status or an error.
func FuzzHTTPStatus(f *testing.F) {
	for _, answer := range []string{"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 1000 X\r\n\r\n", "HTTP/1.1 -20 X\r\n\r\n", "HTTP/1.0 204\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz"} {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		if status, err := httpStatus(answer); err == nil && (status < 0 || status > 999) {
			t.Errorf("%q: status %d", answer, status)
		}
	})
}

// TestEveryWindowOfARestart lets the manager die before and after each thing that it asks of
// the engine while a process starts, fails, is started again and is stopped. The process is
// there once afterwards, and goes on.
func TestEveryWindowOfARestart(t *testing.T) {
	through := false
	for at := int64(1); !through; at++ {
		synctest.Test(t, func(t *testing.T) {
			w := &windows{bench: newBench(t)}
			w.start()
			defer func() { w.Close(ctx, false) }()
			w.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}})
			w.listen(80)
			w.dieAt(at, true)
			started, stopped := w.restartAndStop()
			through = w.bury()
			w.start()
			time.Sleep(5 * time.Minute)
			running, known := 0, 0
			for _, p := range w.bench.boxOf(keyA).Processes() {
				if known++; !isDone(p.Done()) {
					running++
				}
			}
			list, err := w.Processes(keyA)
			must(t, err)
			use, _ := w.Quota("t")
			if len(list) != known || use.Processes != int64(running) || running > 1 {
				t.Errorf("window %d, %s: %d known, %d running, %d counted, views %+v", at, w.died, known, running, use.Processes, list)
			}
			if len(list) == 0 && started {
				t.Errorf("window %d, %s: the process is lost", at, w.died)
			}
			for _, v := range list {
				if v.State != ProcessReady && v.State != ProcessStopped || v.State == ProcessReady && stopped {
					t.Errorf("window %d, %s: %+v", at, w.died, v)
				}
			}
		})
		if t.Failed() {
			return
		}
		if through {
			t.Logf("%d windows", at-1)
		}
	}
}

// restartAndStop starts a process, which fails twice, and stops it. It reports what was
// answered as done.
func (w *windows) restartAndStop() (started, stopped bool) {
	_, err := w.Start(w.ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}, ProcessSettings: ProcessSettings{Ready: onPort, Restart: "on-failure"}})
	if err != nil {
		return false, false
	}
	for range 2 {
		p, err := w.Process(keyA, "p")
		if err != nil {
			return true, false
		}
		if p, err = p.WaitReady(w.ctx); err != nil {
			return true, false
		}
		w.bench.boxOf(keyA).Process(p.View().Key).Exit(1)
		select {
		case <-p.Done():
		case <-w.ctx.Done():
			return true, false
		}
		time.Sleep(5 * time.Second)
	}
	p, err := w.Process(keyA, "p")
	return true, err == nil && p.Stop(w.ctx, me, StopOptions{}) == nil
}

// The text is found wherever reads are cut, and not across bytes that were overwritten.
func TestTextInOutput(t *testing.T) {
	for _, at := range []int{0, 990, 995, 999, 1000, 1001, 31_999, 40_000} { // a read returns 1,000 bytes
		o := &enginetest.Output{}
		o.Write([]byte(strings.Repeat("y", at) + "is ready\n"))
		if !hasText(ctx, o, "is ready") {
			t.Errorf("at %d: not found", at)
		}
		if hasText(ctx, o, "is  ready") {
			t.Errorf("at %d: found what is not there", at)
		}
	}
	o := &enginetest.Output{Keep: 10}
	o.Write([]byte("is ready, and more"))
	if hasText(ctx, o, "is ready") {
		t.Error("found what is no longer kept")
	}
}
