package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// creation is what the making of a box takes at most here, with a margin: kills
// are spread evenly over it.
const creation = 40 * time.Millisecond

// TestKillCreation kills the launcher, or the process that becomes PID 1, at every point of the creation
// of a box.
func TestKillCreation(t *testing.T) {
	for name, find := range map[string]func(proc) bool{"launcher": proc.isLauncher, "init": proc.isInit} {
		t.Run(name, func(t *testing.T) {
			binaries(t)
			state := newState(t)
			n, count := seed(t), cycles(t, 0.5)
			for i := range count {
				// One kill somewhere in each slice of the time.
				rng := rand.New(rand.NewPCG(n, uint64(i)))
				delay := creation * time.Duration(i) / time.Duration(count)
				delay += time.Duration(rng.Int64N(int64(creation) / int64(count)))
				killCreation(t, state, i, delay, find)
				if t.Failed() {
					t.Fatalf("failed in cycle %d, %v after the launcher was ready", i, delay)
				}
			}
		})
	}
}

func killCreation(t *testing.T, state string, i int, delay time.Duration, find func(proc) bool) {
	t.Helper()
	id := fmt.Sprintf("faults-%d-c%d", os.Getpid(), i)
	c := startCaller(t, state, id)
	var events []event
	hit := 0
	if e, ok := <-c.events; ok {
		events = append(events, e) // "engine": the box is being made from now on
		time.Sleep(delay)
		for _, p := range descendants(os.Getpid()) {
			if find(p) && !p.isZombie() {
				_ = unix.Kill(p.pid, unix.SIGKILL)
				hit++
			}
		}
	}
	events = append(events, c.finish(t)...)
	checkReport(t, fmt.Sprint("delay ", delay), fault{}, hit, events)
	waitGone(t, patience)
	follow(t, state)
	wantNothingLeft(t, state, []string{id})
	if t.Failed() {
		t.Logf("it reported %+v and said %q", events, c.stderr.String())
	}
}
