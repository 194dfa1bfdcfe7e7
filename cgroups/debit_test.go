package cgroups

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// TestDebit: a debit lowers the limit in force but not the one on record, changes of the limit
// take it into account, and an adoption lifts it.
func TestDebit(t *testing.T) {
	b := newBox(t, Limits{Memory: 64 * mib})
	inForce := func(want int64) {
		t.Helper()
		if m, _, _ := b.inForce(t); m != want {
			t.Errorf("%d MiB in force, want %d", m/mib, want/mib)
		}
	}
	wanted := b.Limits()
	check(t, b.Debit(24*mib))
	inForce(40 * mib)
	if b.Limits() != wanted {
		t.Errorf("Limits() is %+v, want %+v", b.Limits(), wanted)
	}
	check(t, b.Set(Limits{Memory: 96 * mib}))
	inForce(72 * mib)
	check(t, b.Set(Limits{Memory: 32 * mib}))
	inForce(8 * mib)
	check(t, b.Debit(48*mib)) // more than the limit
	inForce(0)
	check(t, b.Set(Limits{Memory: Unlimited}))
	inForce(Unlimited)
	check(t, b.Debit(1*mib)) // of nothing
	inForce(Unlimited)
	check(t, b.Set(Limits{Memory: 64 * mib}))
	check(t, b.Debit(0))
	inForce(64 * mib)

	check(t, b.Debit(24*mib))
	adopted, err := b.host.Adopt(b.ID, Owner{}, wanted)
	check(t, err)
	check(t, adopted.Debit(0))
	inForce(64 * mib)
	check(t, adopted.Close())
}

// TestDebitBelowUse: a debit below the usage kills on cgroup2; on v1 it fails, and LargestSlot
// says what to kill.
func TestDebitBelowUse(t *testing.T) {
	b := newBox(t, Limits{Memory: 128 * mib})
	small, _ := b.slot(t)
	b.start(t, small, "hog", fmt.Sprint(4*mib)).line(t)
	large, stats := b.slot(t)
	hog := b.start(t, large, "hog", fmt.Sprint(64*mib))
	hog.line(t)
	if s, _, err := b.LargestSlot(nil, 0); err != nil || s == nil || s.Name != large.Name {
		t.Errorf("the largest slot: %+v, %v", s, err)
	}
	locker, err := readPIDs(b.v2.box, small.path()+"/cgroup.procs")
	check(t, err)
	for held, want := range map[int64]string{51: small.Name, 50: large.Name} {
		if s, _, err := b.LargestSlot(map[int]int64{locker[0]: held}, 100); err != nil || s == nil || s.Name != want {
			t.Errorf("with %d of 100 held by the small slot: %+v, %v, want slot %s", held, s, err, want)
		}
	}
	if pids, err := b.PIDs(); err != nil || len(pids) != 2 {
		t.Errorf("processes %v, %v", pids, err)
	}
	err = b.Debit(96 * mib)
	if b.v1Tree("memory") == nil {
		check(t, err)
		if sig := hog.wait(t); sig != syscall.SIGKILL {
			t.Errorf("the hog ended by %v", sig)
		}
		if use, err := stats.Read(); err != nil || orMinus(use.OOMKills) < 1 {
			t.Errorf("%s, %v: want an OOM kill", use, err)
		}
		return
	}
	var inUse *InUseError
	if !errors.As(err, &inUse) || inUse.Usage < 160*mib || inUse.Want != 128*mib {
		t.Errorf("a debit of what is in use: %v", err)
	}
	if m, _, _ := b.inForce(t); m != 128*mib {
		t.Errorf("%d MiB in force", m/mib)
	}
	check(t, b.Debit(32*mib))
	if m, _, _ := b.inForce(t); m != 96*mib {
		t.Errorf("%d MiB in force after a smaller debit", m/mib)
	}
}

// TestKillCommand: the command that had certain processes is killed, and none that came to its slot later.
func TestKillCommand(t *testing.T) {
	b := newBox(t, Limits{})
	s, _ := b.slot(t)
	of := func() []int {
		t.Helper()
		pids, err := readPIDs(b.v2.box, s.path()+"/cgroup.procs")
		check(t, err)
		return pids
	}
	want := func(what string, pids []int, want bool) {
		t.Helper()
		if killed, err := s.KillCommand(pids); killed != want || err != nil {
			t.Errorf("%s: killed %v, %v", what, killed, err)
		}
	}
	first := b.start(t, s, "hog", fmt.Sprint(mib))
	first.line(t)
	earlier := of()
	want("a command of one process", earlier, true)
	if sig := first.wait(t); sig != syscall.SIGKILL {
		t.Errorf("it ended by %v", sig)
	}
	want("one that has ended", earlier, false)
	next := b.start(t, s, "hog", fmt.Sprint(mib))
	next.line(t)
	want("an earlier one, when the slot serves another", earlier, false)
	want("another one's process, in another slot", []int{os.Getpid()}, false)
	later := b.start(t, s, "hog", fmt.Sprint(mib))
	later.line(t)
	both := of()
	if len(both) != 2 {
		t.Fatalf("in the slot: %v", both)
	}
	want("a command of two processes", both, true)
	for _, p := range []*child{next, later} {
		if sig := p.wait(t); sig != syscall.SIGKILL {
			t.Errorf("one of them ended by %v", sig)
		}
	}
}
