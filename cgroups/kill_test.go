package cgroups

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestKillFindsWhoIsOnlyOnV1: Kill finds a process that never arrived on cgroup2.
func TestKillFindsWhoIsOnlyOnV1(t *testing.T) {
	b := newBox(t, Limits{})
	if len(b.v1) == 0 {
		t.Log("no v1 hierarchy: nothing to test")
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	check(t, b.EnterThread())
	c := newChild(t, nil, "sleep")
	serr := c.cmd.Start()
	// Kill must not kill this process while one of its threads is in the cgroup.
	kerr := b.Kill()
	check(t, b.LeaveThread())
	c.started()
	check(t, serr)
	check(t, kerr)
	if sig := c.wait(t); sig != syscall.SIGKILL {
		t.Errorf("ended by %v", sig)
	}
}

func TestKillReachesDaemons(t *testing.T) {
	kills := map[string]func(b *testBox, s *Slot) error{
		"slot":   func(_ *testBox, s *Slot) error { return s.Kill() },
		"box":    func(b *testBox, _ *Slot) error { return b.Kill() },
		"freeze": func(b *testBox, s *Slot) error { return s.on(freezeAndKill) },
	}
	for name, kill := range kills {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, Limits{PIDs: 64})
			s, stats := b.slot(t)
			c := b.start(t, s, "daemon")
			if got := c.line(t); got != "ready" {
				t.Fatalf("daemon says %q", got)
			}
			c.wait(t)
			if populated, err := stats.Populated(); err != nil || !populated {
				t.Fatalf("daemon alive: %v, %v", populated, err)
			}
			check(t, kill(b, s))
			check(t, stats.WaitEmpty(t.Context()))
			check(t, s.Remove(t.Context()))
		})
	}
}

func TestSignalReachesAll(t *testing.T) {
	b := newBox(t, Limits{PIDs: 64})
	s, stats := b.slot(t)
	other, otherStats := b.slot(t)
	b.start(t, other, "sleep").line(t)
	c := b.start(t, s, "forks", "20")
	if got := c.line(t); got != "20 0" {
		t.Fatalf("forks: %s", got)
	}
	check(t, s.Signal(unix.SIGTERM))
	c.wait(t)
	check(t, stats.WaitEmpty(t.Context()))
	if populated, err := otherStats.Populated(); err != nil || !populated {
		t.Errorf("the other slot: %v, %v", populated, err)
	}
}

// TestSignalNeedsFewDescriptors: a box may have more processes than the launcher
// may have descriptors.
func TestSignalNeedsFewDescriptors(t *testing.T) {
	b := newBox(t, Limits{PIDs: 2 * maxPidfds})
	s, stats := b.slot(t)
	c := b.start(t, s, "forks", fmt.Sprint(maxPidfds+50))
	if got := c.line(t); got != fmt.Sprintf("%d 0", maxPidfds+50) {
		t.Fatalf("forks: %s", got)
	}
	var old unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	next, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0) // the lowest that is free
	check(t, err)
	check(t, unix.Close(next))
	few := old
	few.Cur = uint64(next + maxPidfds + 20)
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	err = s.Signal(unix.SIGTERM)
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	check(t, err)
	c.wait(t)
	check(t, stats.WaitEmpty(t.Context()))
}

func TestWaitEmptyIsCanceled(t *testing.T) {
	b := newBox(t, Limits{})
	s, stats := b.slot(t)
	b.start(t, s, "sleep").line(t)
	cause := errors.New("enough")
	for _, delay := range []time.Duration{0, time.Millisecond, 50 * time.Millisecond} {
		ctx, cancel := context.WithCancelCause(t.Context())
		timer := time.AfterFunc(delay, func() { cancel(cause) })
		if err := stats.WaitEmpty(ctx); !errors.Is(err, cause) {
			t.Errorf("after %v: %v", delay, err)
		}
		timer.Stop()
		cancel(nil)
	}
	killed := make(chan error)
	go func() { killed <- s.Kill() }()
	check(t, stats.WaitEmpty(t.Context()))
	check(t, <-killed)
}
