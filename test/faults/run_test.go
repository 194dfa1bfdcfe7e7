package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestKillRun kills "boxd run", its launcher or its PID 1 at any moment after their start. The next run
// removes what is left.
func TestKillRun(t *testing.T) {
	state := newState(t)
	whole := patience
	for range 3 {
		began := time.Now()
		if status, said := boxdRun(t, state).status(t); status != ownStatus || said != "" {
			t.Fatalf("undisturbed: status %d, stderr %q", status, said)
		}
		whole = min(whole, time.Since(began))
	}
	n, hits := seed(t), 0
	for i := range cycles(t, 0.5) {
		rng := rand.New(rand.NewPCG(n, uint64(i)))
		f := newFault(rng, whole)
		name := fmt.Sprintf("cycle %d, %v", i, f)
		r := boxdRun(t, state)
		time.Sleep(f.delay)
		hit := f.inflict(r.cmd.Process.Pid)
		hits += hit
		ids := boxIDs(state)
		status, said := r.status(t)
		if !slices.Contains(f.targets, callerVictim) || hit == 0 {
			wantHonest(t, name, hit, status, said)
		}
		waitGone(t, patience)
		ids = append(ids, boxIDs(state)...)
		follow(t, state)
		wantNothingLeft(t, state, ids)
		if t.Failed() {
			t.Fatalf("%s: failed; status %d, stderr %q", name, status, said)
		}
	}
	t.Logf("%d processes were killed, of runs that take %v undisturbed", hits, whole)
}

// wantHonest: a run that was cut short says so.
func wantHonest(t *testing.T, name string, hit, status int, said string) {
	t.Helper()
	lines := strings.Count(said, "\n")
	switch {
	case status == ownStatus && (said == "" || hit > 0):
	case hit > 0 && status == 137 && strings.Contains(said, "verdict: box-lost"):
	case hit > 0 && status == 125 && lines > 0:
	default:
		t.Errorf("%s: status %d, stderr %q", name, status, said)
	}
	if lines > 3 {
		t.Errorf("%s: %d lines on stderr: %q", name, lines, said)
	}
}

// oneRun is a "boxd run" that was started.
type oneRun struct {
	cmd    *exec.Cmd
	stderr strings.Builder
}

// boxdRun starts "boxd run" of a command with children and a status of its own.
func boxdRun(t testing.TB, state string) *oneRun {
	t.Helper()
	boxd, boxdInit := binaries(t)
	r := &oneRun{cmd: exec.Command(boxd, "run", "--init", boxdInit, "--state-dir", state, "--",
		"sh", "-c", "(setsid sleep 1000 &); sleep 0.02; exit 7")}
	r.cmd.Stderr = &r.stderr
	// The launcher has the same stderr, and may have to live a little longer.
	r.cmd.WaitDelay = patience
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// status waits for its end.
func (r *oneRun) status(t testing.TB) (status int, stderr string) {
	t.Helper()
	timer := time.AfterFunc(patience, func() {
		t.Errorf("boxd run hangs")
		_ = r.cmd.Process.Signal(quitWithStacks)
	})
	defer timer.Stop()
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Errorf("waiting for boxd run: %v", err)
	}
	return r.cmd.ProcessState.ExitCode(), r.stderr.String()
}
