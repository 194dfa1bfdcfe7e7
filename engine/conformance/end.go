package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
)

// stubborn scripts leave processes that do not want to end.
var stubborn = []struct{ name, script string }{
	{"one that ignores SIGTERM", "trap '' TERM INT HUP; echo ready; while :; do sleep 3600; done"},
	{"a child that ignores SIGTERM", "(trap '' TERM HUP; echo ready; while :; do sleep 3600; done) & wait; sleep 3600"},
	{"a daemon", "setsid sh -c 'trap \"\" TERM HUP; (echo ready; while :; do sleep 3600; done) & exit 0' & wait; exec sleep 3600"},
	{"a daemon of a daemon", "setsid sh -c 'setsid sh -c \"trap : TERM; echo ready; while :; do sleep 3600; done\" & exit 0'; exec sleep 3600"},
	{"one that is stopped", "sleep 3600 & kill -STOP $!; echo ready; kill -STOP $$"},
	{"one that forks all the time", "echo ready; trap '' TERM; while :; do (sleep 3600 & setsid sleep 3600 &) ; sleep 0.01; done 2>/dev/null"},
}

// timeout: whatever a command started is gone when its timeout is reported.
func (e *suite) timeout(t testing.TB) {
	b := e.create(t, engine.Spec{})
	for _, c := range stubborn {
		sub(t, c.name, func(t testing.TB) {
			cmd := boxtest.Shell(c.script)
			cmd.Timeout, cmd.Grace = 300*time.Millisecond, 100*time.Millisecond
			o := boxtest.Run(t, b, cmd)
			boxtest.Want(t, o, engine.TimedOut, 124)
			if o.Limit != "300ms" {
				t.Errorf("limit %q", o.Limit)
			}
			e.wantNoCommands(t, b)
		})
	}
}

// timeoutIsGentle: a command has its grace to say goodbye, and its whole tree
// hears of it.
func (e *suite) timeoutIsGentle(t testing.TB) {
	b := e.create(t, engine.Spec{})
	c := boxtest.Shell(`trap 'echo parent; wait; exit 7' TERM
		setsid sh -c 'trap "echo child; exit" TERM; ` + testutil.SignalLoop + `' &
		while :; do wait; sleep 0.05; done`)
	c.Timeout, c.Grace = boxtest.Patience/30, boxtest.Patience // both traps must be set by then
	o := boxtest.Run(t, b, c)
	boxtest.Want(t, o, engine.TimedOut, 124)
	if o.ExitCode != 7 || !strings.Contains(o.Stdout, "parent\n") || !strings.Contains(o.Stdout, "child\n") {
		t.Errorf("%+v, %q: want exit status 7 and the words of both", o.Result, o.Stdout)
	}
	e.wantNoCommands(t, b)
}

// timeoutNotReached: no trace of one that was far off.
func (e *suite) timeoutNotReached(t testing.TB) {
	b := e.create(t, engine.Spec{})
	c := boxtest.Shell("exit 4")
	c.Timeout = time.Hour
	boxtest.Want(t, boxtest.Run(t, b, c), engine.Exited, 4)
}

// cancel: the caller's context ends a command at once, with all it started.
func (e *suite) cancel(t testing.TB) {
	b := e.create(t, engine.Spec{})
	for _, c := range stubborn {
		sub(t, c.name, func(t testing.TB) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := boxtest.NewScreen()
			cmd := boxtest.Shell(c.script)
			cmd.Stdout = out
			p, err := b.Start(ctx, cmd)
			if err != nil {
				t.Fatal(err)
			}
			out.Await(t, "ready")
			cancel()
			if r := boxtest.Wait(t, p); r.Verdict != engine.Canceled || r.Status() != 137 {
				t.Errorf("%+v", r)
			}
			e.wantNoCommands(t, b)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Start(ctx, boxtest.Shell("true")); !errors.Is(err, context.Canceled) {
		t.Errorf("start with an ended context: %v", err)
	}
}

// cancelGrace: with a grace, the whole tree first gets SIGTERM, including background processes that were
// to be kept. Processes that ignore it are killed.
func (e *suite) cancelGrace(t testing.TB) {
	b := e.create(t, engine.Spec{})
	for _, c := range []struct {
		name, script string
		grace        time.Duration
		code         int
		said         string
	}{
		{"listens", `trap 'wait; echo parent; exit 7' TERM
			setsid sh -c 'trap "echo child; exit" TERM; echo ready; ` + testutil.SignalLoop + `' &
			while :; do wait; sleep 0.05; done`, boxtest.Patience, 7, "child\nparent\n"},
		{"does not", `trap "echo heard" TERM; echo ready; ` + testutil.SignalLoop, 300 * time.Millisecond, -1, "heard\n"},
		{"left behind", `sh -c 'trap "" TERM; echo ready; sleep 1000' & exec sleep 1000`, 300 * time.Millisecond, -1, ""},
	} {
		sub(t, c.name, func(t testing.TB) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := boxtest.NewScreen()
			cmd := boxtest.Shell(c.script)
			cmd.Stdout, cmd.CancelGrace, cmd.KeepBackground = out, c.grace, true
			p, err := b.Start(ctx, cmd)
			if err != nil {
				t.Fatal(err)
			}
			out.Await(t, "ready")
			began := time.Now()
			cancel()
			r := boxtest.Wait(t, p)
			if r.Verdict != engine.Canceled || r.ExitCode != c.code || !strings.HasSuffix(out.String(), c.said) {
				t.Errorf("%+v, %q", r, out.String())
			}
			if took := time.Since(began); c.code < 0 && c.said != "" && took < c.grace {
				t.Errorf("killed after %v", took)
			}
			e.wantNoCommands(t, b)
		})
	}
	// During the grace of its timeout, a command gets no more time than the grace of a cancellation.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := boxtest.NewScreen()
	cmd := boxtest.Shell(`trap "echo heard" TERM; echo ready; while :; do sleep 0.05; done`)
	cmd.Stdout, cmd.Timeout, cmd.Grace, cmd.CancelGrace = out, boxtest.Patience/30, time.Hour, 100*time.Millisecond // the trap must be set by then
	p, err := b.Start(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	out.Await(t, "heard")
	cancel()
	if r := boxtest.Wait(t, p); r.Verdict != engine.TimedOut {
		t.Errorf("%+v", r)
	}
	e.wantNoCommands(t, b)
}

// cancelGraceOfYoung: a command that has just begun has its grace too, although its caller may not
// have heard yet that it runs.
func (e *suite) cancelGraceOfYoung(t testing.TB) {
	b := e.create(t, engine.Spec{})
	for range 30 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out := &echo{heard: cancel}
		cmd := boxtest.Shell(`trap 'echo heard; exit 7' TERM; echo ready; ` + testutil.SignalLoop)
		cmd.Stdout, cmd.CancelGrace = out, boxtest.Patience
		p, err := b.Start(ctx, cmd)
		if err != nil {
			t.Fatal(err)
		}
		if r := boxtest.Wait(t, p); r.Verdict != engine.Canceled || r.ExitCode != 7 || out.String() != "ready\nheard\n" {
			t.Fatalf("%+v, %q", r, out.String())
		}
	}
	e.wantNoCommands(t, b)
}

// echo is a writer that calls heard at each write.
type echo struct {
	strings.Builder
	heard func()
}

func (e *echo) Write(b []byte) (int, error) {
	defer e.heard()
	return e.Builder.Write(b)
}

// signal: a signal goes to the first process, as kill(1) would send it.
func (e *suite) signal(t testing.TB) {
	b := e.create(t, engine.Spec{})
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGKILL} {
		out := boxtest.NewScreen()
		c := boxtest.Shell("echo ready; exec sleep 3600")
		c.Stdout = out
		p := boxtest.Begin(t, b, c)
		out.Await(t, "ready")
		if err := p.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if r := boxtest.Wait(t, p); r.Verdict != engine.Signaled || r.Signal != sig {
			t.Errorf("%v: %+v", sig, r)
		}
	}
}

// signalOtherUser: the agent may signal the commands of every user.
func (e *suite) signalOtherUser(t testing.TB) {
	b := e.create(t, engine.Spec{})
	out := boxtest.NewScreen()
	c := boxtest.Shell("trap 'exit 5' USR1; echo ready; " + testutil.SignalLoop)
	c.Stdout, c.User = out, &engine.User{UID: 1000, GID: 1000}
	p := boxtest.Begin(t, b, c)
	out.Await(t, "ready")
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if r := boxtest.Wait(t, p); r.ExitCode != 5 {
		t.Errorf("%+v", r)
	}
}

// background: what outlives its command is killed unless it was to be kept.
func (e *suite) background(t testing.TB) {
	b := e.create(t, engine.Spec{})
	const leave = `rm -f /tmp/all; sleep 3600 & setsid sleep 3600 & (setsid sh -c 'sleep 3600 & : >/tmp/all; exec sleep 3600' &)
		while ! test -e /tmp/all; do sleep 0.01; done; exit 6`
	o := boxtest.Run(t, b, boxtest.Shell(leave))
	boxtest.Want(t, o, engine.Exited, 6)
	e.wantNoCommands(t, b)

	// They hold the output open, which must not hold up the result.
	c := boxtest.Shell(leave)
	c.KeepBackground = true
	o = boxtest.Run(t, b, c)
	boxtest.Want(t, o, engine.Exited, 6)
	if n := len(e.Commands(t, b.ID())); n != 4 {
		t.Errorf("%d processes were kept, want 4", n)
	}
	// A later command does not touch them, whatever becomes of it.
	c = boxtest.Shell("sleep 3600")
	c.Timeout, c.Grace = 50*time.Millisecond, time.Millisecond
	boxtest.Want(t, boxtest.Run(t, b, c), engine.TimedOut, 124)
	if n := len(e.Commands(t, b.ID())); n != 4 {
		t.Errorf("%d processes are left after the timeout of another, want 4", n)
	}
	// A timeout also ends processes that were to be kept.
	c = boxtest.Shell("sleep 3600 & exec sleep 3600")
	c.KeepBackground, c.Timeout, c.Grace = true, 50*time.Millisecond, time.Millisecond
	boxtest.Want(t, boxtest.Run(t, b, c), engine.TimedOut, 124)
	if n := len(e.Commands(t, b.ID())); n != 4 {
		t.Errorf("%d processes, want the 4 of before", n)
	}
	boxtest.Remove(t, b)
	e.wantNoCommands(t, b)
}

// concurrent runs fifty commands at once in one box, each with its own
// streams and its own end.
func (e *suite) concurrent(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{PIDs: 400}})
	const n = 50
	type end struct {
		i int
		o boxtest.Outcome
	}
	ends := make(chan end, n)
	errs := make(chan error, n)
	for i := range n {
		go func() {
			var out, stderr strings.Builder
			r, err := engine.Run(t.Context(), b, engine.Command{
				Args:   []string{"sh", "-c", `echo $0; cat; echo err $0 >&2; exit $1`, fmt.Sprint(i), fmt.Sprint(i)},
				Stdin:  strings.NewReader(fmt.Sprintf("in %d\n", i)),
				Stdout: &out, Stderr: &stderr,
			})
			errs <- err
			ends <- end{i, boxtest.Outcome{Result: r, Stdout: out.String(), Stderr: stderr.String()}}
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
		e := <-ends
		if e.o.ExitCode != e.i || e.o.Stdout != fmt.Sprintf("%d\nin %[1]d\n", e.i) || e.o.Stderr != fmt.Sprintf("err %d\n", e.i) {
			t.Errorf("command %d: %+v", e.i, e.o)
		}
		// Of its own, whatever the others do: sh and cat.
		if peak := boxtest.Figure(t, "pids peak", e.o.Receipt.PIDsPeak); peak != 2 {
			t.Errorf("command %d: pids peak %d, want 2", e.i, peak)
		}
	}
	e.wantNoCommands(t, b)
}

// atThePIDsLimit: a command that finds the box full is refused with the
// reason, and the box is as good as before.
func (e *suite) atThePIDsLimit(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{PIDs: 3}})
	var running []engine.Process
	var ends []func()
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p, err := b.Start(ctx, engine.Command{Args: []string{"sleep", "3600"}})
		if err != nil {
			t.Fatal(err)
		}
		running, ends = append(running, p), append(ends, cancel)
	}
	_, err := boxtest.TryRun(t, b, boxtest.Shell("true"))
	if err == nil || !strings.Contains(err.Error(), "pids limit of 3") {
		t.Errorf("a fourth: %v", err)
	}
	ends[0]()
	boxtest.Wait(t, running[0])
	boxtest.Want(t, boxtest.Run(t, b, engine.Command{Args: []string{"true"}}), engine.Exited, 0)
	for i, p := range running[1:] {
		ends[1+i]()
		boxtest.Wait(t, p)
	}
}
