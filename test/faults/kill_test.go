package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// quitWithStacks makes a Go program print what its goroutines do, and end.
const quitWithStacks = unix.SIGQUIT

func newTimer(testing.TB) <-chan time.Time { return time.After(patience) }

// cycles is how often a kill test is repeated: share is which part of all it has.
func cycles(t testing.TB, share float64) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("BOXD_FAULTS_CYCLES"))
	switch {
	case err == nil && n > 0:
	case testing.Short():
		n = 6
	case testutil.Full():
		n = 200
	default:
		n = 40
	}
	return max(int(float64(n)*share), 1)
}

// seed returns the seed of a test and prints it.
func seed(t testing.TB) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(os.Getenv("BOXD_FAULTS_SEED"), 10, 64)
	if err != nil {
		n = rand.Uint64()
	}
	t.Logf("BOXD_FAULTS_SEED=%d", n)
	return n
}

// victim is the target of a fault.
type victim string

const (
	agentVictim    victim = "agent"
	launcherVictim victim = "launcher"
	callerVictim   victim = "caller"
)

// targets are the sets of victims that a cycle chooses from.
var targets = [][]victim{
	{agentVictim}, {launcherVictim}, {callerVictim},
	{agentVictim, launcherVictim}, {launcherVictim, callerVictim}, {callerVictim, agentVictim}, {launcherVictim, agentVictim},
}

// fault is what happens in a cycle. It follows from the seed and the number of
// the cycle.
type fault struct {
	delay   time.Duration // since the start of the caller
	targets []victim
	stop    time.Duration // between SIGSTOP and SIGKILL; 0 is no SIGSTOP
}

func (f fault) String() string {
	return fmt.Sprintf("after %v: %v, stopped for %v", f.delay, f.targets, f.stop)
}

func newFault(rng *rand.Rand, most time.Duration) fault {
	f := fault{
		delay:   time.Duration(rng.Int64N(int64(most))),
		targets: targets[rng.IntN(len(targets))],
	}
	if rng.IntN(3) == 0 {
		f.stop = time.Duration(rng.Int64N(int64(30 * time.Millisecond)))
	}
	return f
}

// inflict does it to the processes below the caller and returns how many it hit:
// a victim that does not exist yet, or any more, is spared.
func (f fault) inflict(caller int) (hit int) {
	var pids []int
	below := descendants(os.Getpid())
	for _, v := range f.targets {
		for _, p := range below {
			if p.isZombie() {
				continue
			}
			if v == launcherVictim && p.isLauncher() || v == agentVictim && p.isInit() || v == callerVictim && p.pid == caller {
				pids = append(pids, p.pid)
			}
		}
	}
	if f.stop > 0 {
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		time.Sleep(f.stop)
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return len(pids)
}

// TestKill kills the agent, the launcher, the caller, or two of them, at random
// moments of the life of a box in which all kinds of commands run.
func TestKill(t *testing.T) {
	state := newState(t)
	whole := undisturbed(t, state)
	n := seed(t)
	hits := 0
	for i := range cycles(t, 1) {
		rng := rand.New(rand.NewPCG(n, uint64(i)))
		f := newFault(rng, whole)
		name := fmt.Sprintf("cycle %d, %v", i, f)
		id := fmt.Sprintf("faults-%d-%d", os.Getpid(), i)
		c := startCaller(t, state, id)
		time.Sleep(f.delay)
		hit := f.inflict(c.cmd.Process.Pid)
		hits += hit
		events := c.finish(t)
		checkReport(t, name, f, hit, events)
		waitGone(t, patience)
		follow(t, state)
		wantNothingLeft(t, state, []string{id})
		if t.Failed() {
			t.Fatalf("%s: failed; it reported %+v and said %q", name, events, c.stderr.String())
		}
	}
	t.Logf("%d processes were killed, of runs that take %v undisturbed", hits, whole)
}

// undisturbed runs callers to their end and returns how long the fastest takes:
// a busy machine would have most faults come after the end.
func undisturbed(t *testing.T, state string) time.Duration {
	t.Helper()
	return min(oneUndisturbed(t, state), oneUndisturbed(t, state), oneUndisturbed(t, state))
}

func oneUndisturbed(t *testing.T, state string) time.Duration {
	t.Helper()
	began := time.Now()
	c := startCaller(t, state, fmt.Sprintf("faults-%d", os.Getpid()))
	events := c.finish(t)
	whole := time.Since(began)
	checkReport(t, "undisturbed", fault{}, 0, events)
	waitGone(t, patience)
	wantNothingLeft(t, state, nil)
	if t.Failed() {
		t.Fatalf("undisturbed: it reported %+v and said %q", events, c.stderr.String())
	}
	return whole
}

// checkReport: a command that was cut short ends with box-lost or an error, never
// with a status that is made up, and a caller that lives says how all of them
// ended.
func checkReport(t *testing.T, name string, f fault, hit int, events []event) {
	t.Helper()
	for _, e := range events {
		_, isCommand := commands[e.Step]
		switch {
		case e.Error != "" && (hit == 0 || strings.ContainsRune(e.Error, '\n')):
			t.Errorf("%s: %s: error %q", name, e.Step, e.Error)
		case !isCommand || e.Error != "" && e.Verdict == "":
		case e.Verdict == engine.Exited && e.Code == ownStatus:
		case hit > 0 && e.Verdict == engine.BoxLost && e.Code == -1:
		default:
			t.Errorf("%s: %s: ended as %+v", name, e.Step, e)
		}
	}
	if hit == 0 || !slices.Contains(f.targets, callerVictim) {
		wantComplete(t, name, events)
	}
}

// wantComplete checks that the caller got as far as it could.
func wantComplete(t *testing.T, name string, events []event) {
	t.Helper()
	steps := map[string]event{}
	for _, e := range events {
		steps[e.Step] = e
	}
	want := []string{"engine"}
	if steps["engine"].Error == "" {
		want = append(want, "box", "close")
	}
	if box, ok := steps["box"]; ok && box.Error == "" {
		want = append(want, "remove")
		for command := range commands {
			want = append(want, command)
		}
	}
	for _, step := range want {
		if _, ok := steps[step]; !ok {
			t.Errorf("%s: no word about %q", name, step)
		}
	}
}
