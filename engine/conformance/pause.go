package conformance

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
)

// stands is how long a case looks whether a paused box does anything.
const stands = 100 * time.Millisecond

func setPaused(t testing.TB, b engine.Box, paused bool) {
	t.Helper()
	p, change := b.(engine.Pausable), b.(engine.Pausable).Resume
	if paused {
		change = p.Pause
	}
	ctx, cancel := context.WithTimeout(t.Context(), boxtest.Patience)
	defer cancel()
	if err := change(ctx); err != nil {
		t.Fatal(err)
	}
	if p.Paused() != paused {
		t.Fatalf("paused: %v", !paused)
	}
}

// wantStill: nothing runs in the box.
func wantStill(t testing.TB, b engine.LiveBox) {
	t.Helper()
	used := func() time.Duration {
		u, err := b.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return boxtest.Figure(t, "CPU", u.CPU)
	}
	before := used()
	time.Sleep(stands)
	// PID 1 and, in a gVisor box, its helper may have done something.
	if after := used(); after-before > stands/2 {
		t.Errorf("a paused box has used %s of processor time in %s", after-before, stands)
	}
}

// wantPaused: nothing starts in the box.
func wantPaused(t testing.TB, b engine.LiveBox) {
	t.Helper()
	if _, err := b.Start(t.Context(), engine.Command{Args: []string{"true"}}); !errors.Is(err, engine.ErrPaused) || errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("start: %v", err)
	}
	if _, err := b.Launch(t.Context(), engine.Managed{Key: "refused", Args: []string{"true"}}); !errors.Is(err, engine.ErrPaused) {
		t.Errorf("launch: %v", err)
	}
}

// pause: what runs stands still and goes on, as if nothing had been; many may ask at once.
func (e *suite) pause(t testing.TB) {
	b := e.create(t, engine.Spec{})
	boxtest.WantOutput(t, b, "echo before", "before\n")
	out := boxtest.NewScreen()
	release, stdin := boxtest.NewGate()
	release = sync.OnceFunc(release)
	defer release()
	c := boxtest.Shell("echo begun; (while :; do :; done) & read x; kill $!; echo ended; exit 7")
	c.Stdin, c.Stdout = stdin, out
	p := boxtest.Begin(t, b, c)
	out.Await(t, "begun\n")
	m := boxtest.Launch(t, b, boxtest.ManagedShell("cat", "echo early; exec cat"))
	r := boxtest.NewReader(t, m.Stdio().Stdout)
	early := make([]byte, 6)
	if n, err := r.Read(early); err != nil || string(early[:n]) != "early\n" {
		t.Fatalf("%q, %v", early[:n], err)
	}
	for range 3 {
		setPaused(t, b, true)
		wantStill(t, b)
		setPaused(t, b, false)
	}
	var many sync.WaitGroup
	for i := range 16 {
		many.Go(func() {
			change := b.(engine.Pausable).Pause
			if i%2 == 0 {
				change = b.(engine.Pausable).Resume
			}
			if err := change(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	many.Wait()
	setPaused(t, b, true)
	setPaused(t, b, true)
	wantStill(t, b)
	wantPaused(t, b)
	// The box answers, and input is accepted and waits.
	if _, err := b.Ports(); err != nil {
		t.Error(err)
	}
	if err := m.Stdio().Stdin.Write(boxtest.Patient(t), 0, []byte("waits\n")); err != nil {
		t.Error(err)
	}
	release()
	setPaused(t, b, false)
	setPaused(t, b, false)
	if got := boxtest.Wait(t, p); got.ExitCode != 7 || out.String() != "ended\n" {
		t.Errorf("%+v, %q", got, out)
	}
	late := make([]byte, 6)
	if n, err := r.Read(late); err != nil || string(late[:n]) != "waits\n" {
		t.Errorf("%q, %v", late[:n], err)
	}
	boxtest.GoOn(t, m)
	boxtest.WantOutput(t, b, "echo after", "after\n")
}

// pausedTimeout: a timeout stands still with the box.
func (e *suite) pausedTimeout(t testing.TB) {
	b := e.create(t, engine.Spec{})
	const limit = 1500 * time.Millisecond
	release, stdin := boxtest.NewGate()
	release = sync.OnceFunc(release)
	defer release()
	c := boxtest.Shell("read x; exit 3")
	c.Timeout, c.Stdin = limit, stdin
	short := boxtest.Begin(t, b, c)
	c = boxtest.Shell("sleep 3600")
	c.Timeout, c.Grace = limit, time.Millisecond
	began := time.Now()
	long := boxtest.Begin(t, b, c)
	setPaused(t, b, true)
	time.Sleep(limit + stands)
	release()
	setPaused(t, b, false)
	if r := boxtest.Wait(t, short); r.Verdict != engine.Exited || r.ExitCode != 3 {
		t.Errorf("a command that had time left: %+v", r)
	}
	r := boxtest.Wait(t, long)
	if took := time.Since(began); r.Verdict != engine.TimedOut || r.Limit != limit.String() || took < 2*limit || r.Receipt.Wall < 2*limit {
		t.Errorf("%+v after %s", r, took)
	}
}

// pausedEnds: a paused box can be changed, its commands killed, and it can be removed.
func (e *suite) pausedEnds(t testing.TB) {
	b := e.create(t, engine.Spec{})
	out := boxtest.NewScreen()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := boxtest.Shell("echo begun; sleep 3600 & exec sleep 3600")
	c.Stdout = out
	p, err := b.Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	out.Await(t, "begun\n")
	m := boxtest.Launch(t, b, boxtest.ManagedShell("m", "exec sleep 3600"))
	still := boxtest.Begin(t, b, boxtest.Shell("exec sleep 3600"))
	setPaused(t, b, true)
	cancel()
	if r := boxtest.Wait(t, p); r.Verdict != engine.Canceled {
		t.Errorf("a command that was cancelled: %+v", r)
	}
	if err := m.Control().Kill(boxtest.Patient(t)); err != nil {
		t.Error(err)
	}
	if r := boxtest.Await(t, m); r.Verdict != engine.Signaled || r.Signal != syscall.SIGKILL {
		t.Errorf("a process that was killed: %+v", r)
	}
	boxtest.Update(t, b, engine.Limits{Memory: 99 * boxtest.MiB})
	wantPaused(t, b)
	boxtest.Remove(t, b)
	if r := boxtest.Wait(t, still); r.Verdict != engine.BoxLost {
		t.Errorf("a command of a removed box: %+v", r)
	}
	for what, err := range map[string]error{"pause": b.(engine.Pausable).Pause(t.Context()), "resume": b.(engine.Pausable).Resume(t.Context())} {
		if !errors.Is(err, engine.ErrBoxLost) {
			t.Errorf("%s after removal: %v", what, err)
		}
	}
}

// pauseReclaims: a paused box gives memory to the host, and has it again afterwards; a host that cannot says so, and
// changes nothing.
func (e *suite) pauseReclaims(t testing.TB) {
	swaps := testutil.Swap(t, 128*boxtest.MiB)
	b := e.create(t, engine.Spec{})
	p := b.(engine.Pausable)
	if err := p.CanReclaim(t.Context()); err != nil {
		setPaused(t, b, true)
		bytes, again := p.Reclaim(t.Context())
		if swaps || !errors.Is(err, engine.ErrUnenforceable) || bytes != 0 || !errors.Is(again, engine.ErrUnenforceable) {
			t.Errorf("can reclaim: %v; reclaim: %d, %v", err, bytes, again)
		}
		setPaused(t, b, false)
		boxtest.WantOutput(t, b, "echo goes on", "goes on\n")
		return
	}
	if !swaps {
		t.Skip("a host with swap of its own: what the box could give depends on it")
	}
	const size = 48 * boxtest.MiB
	out := boxtest.NewScreen()
	release, stdin := boxtest.NewGate()
	release = sync.OnceFunc(release)
	defer release()
	c := engine.Command{Args: []string{"python3", "-c", `import sys
b = bytearray(i * 7 % 251 for i in range(4096)) * (48 << 8)
print("full", flush=True)
sys.stdin.read()
print(b == bytearray(i * 7 % 251 for i in range(4096)) * (48 << 8))`}}
	c.Stdin, c.Stdout = stdin, out
	command := boxtest.Begin(t, b, c)
	out.Await(t, "full\n")
	if bytes, err := p.Reclaim(t.Context()); bytes != 0 || err != nil {
		t.Errorf("a box that is not paused: %d, %v", bytes, err)
	}
	setPaused(t, b, true)
	bytes, err := p.Reclaim(boxtest.Patient(t))
	u, uerr := b.Usage()
	if err != nil || uerr != nil || bytes < size/2 || *u.Memory > size/2 {
		t.Errorf("%d bytes reclaimed, %v; %+v, %v", bytes, err, u, uerr)
	}
	setPaused(t, b, false)
	release()
	if r := boxtest.Wait(t, command); r.ExitCode != 0 || out.String() != "True\n" {
		t.Errorf("%+v, %q", r, out)
	}
}

// pauseOutlives: a pause outlives clients and launchers.
func (e *suite) pauseOutlives(t testing.TB) {
	s := e.private(t)
	b := s.create(t, engine.Spec{})
	m := boxtest.Launch(t, b, boxtest.ManagedShell("m", "echo begun; (while :; do :; done) & read x; kill $!; echo $x"))
	begun := make([]byte, 6)
	if n, err := boxtest.NewReader(t, m.Stdio().Stdout).Read(begun); err != nil || string(begun[:n]) != "begun\n" {
		t.Fatalf("%q, %v", begun[:n], err)
	}
	setPaused(t, b, true)
	s.KillLauncher(t)
	if _, err := b.Usage(); err != nil { // the next launcher has adopted it
		t.Fatal(err)
	}
	wantStill(t, b)
	wantPaused(t, b)
	s.disconnect(t)
	s.Restart(t)
	s.connect(t)
	b = s.adopt(t, b.ID())
	if !b.(engine.Pausable).Paused() {
		t.Error("an adopted box is not paused")
	}
	wantStill(t, b)
	wantPaused(t, b)
	s.KillLauncher(t)
	setPaused(t, b, false)
	s.KillLauncher(t)
	list := b.Managed()
	if len(list) != 1 {
		t.Fatalf("%d processes", len(list))
	}
	if err := list[0].Stdio().Stdin.Write(boxtest.Patient(t), 0, []byte("x\n")); err != nil {
		t.Error(err)
	}
	if r := boxtest.Await(t, list[0]); r.ExitCode != 0 || boxtest.ReadAll(t, list[0].Stdio().Stdout) != "begun\nx\n" {
		t.Errorf("%+v", r)
	}
	boxtest.WantOutput(t, b, "echo after", "after\n")
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
