package cgroups

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// A slot's own limit kills what is in the slot, and the figures show that it was this limit.
func TestSlotMemoryLimit(t *testing.T) {
	b := newBox(t, Limits{Memory: 192 * mib})
	w, told := newWatcher(t)
	check(t, w.Add(b.Group))
	limited, limitedStats := b.slot(t)
	free, freeStats := b.slot(t)
	check(t, limited.LimitMemory(48*mib+1, false))
	check(t, limited.LimitMemory(48*mib, false)) // again, as after a launcher that was lost
	for s, want := range map[*Slot]int64{limited: 48 * mib, free: Unlimited} {
		if got, err := s.MemoryLimit(); got != want || err != nil {
			t.Errorf("slot %s: %d, %v; want %d", s.Name, got, err, want)
		}
	}
	// Another process, which knows only the box.
	g, err := b.host.Adopt(b.ID, Owner{}, b.Limits())
	check(t, err)
	defer g.Close()
	again, err := g.Slot(limited.Name)
	check(t, err)
	if got, err := again.MemoryLimit(); got != 48*mib || err != nil {
		t.Errorf("adopted: %d, %v", got, err)
	}
	bystander := b.start(t, free, "hog", fmt.Sprint(80*mib))
	bystander.line(t)
	if sig := b.start(t, limited, "hog", fmt.Sprint(100*mib)).wait(t); sig != syscall.SIGKILL {
		t.Errorf("hog ended by %v", sig)
	}
	if n := await(t, told, b.ID, MemoryLimit); n != 1 {
		t.Errorf("out of memory %d times", n)
	}
	use, err := limitedStats.Read()
	check(t, err)
	if !use.HitOwn(48*mib) || orMinus(use.OOMKills) < 1 || orMinus(use.MemoryPeak) > 49*mib || orMinus(use.MemoryPeak) < 40*mib {
		t.Errorf("%s: own limit %v", use, use.HitOwn(48*mib))
	}
	// An event of the box's limit does not count for the slot, and counts once for the box.
	other, otherStats := b.slot(t)
	check(t, other.LimitMemory(180*mib, false))
	b.start(t, other, "hog", fmt.Sprint(150*mib)).wait(t)
	use, err = otherStats.Read()
	check(t, err)
	if orMinus(use.OOMKills) < 1 || use.HitOwn(180*mib) {
		t.Errorf("%s: own limit %v", use, use.HitOwn(180*mib))
	}
	if n := await(t, told, b.ID, MemoryLimit); n != 2 {
		t.Errorf("out of memory %d times", n)
	}
	if use, err := freeStats.Read(); err != nil || orMinus(use.OOMKills) != 0 {
		t.Errorf("bystander: %s, %v", use, err)
	}
	check(t, free.Kill())
	bystander.wait(t)
	// A removal does not count as an event.
	for _, s := range []*Slot{limited, other, free} {
		check(t, s.Remove(t.Context()))
	}
	select {
	case h := <-told:
		t.Errorf("heard %+v of a removal", h)
	default:
	}
	if got, err := limited.MemoryLimit(); got != Unlimited || err != nil {
		t.Errorf("a slot that is gone: %d, %v", got, err)
	}
	if err := limited.LimitMemory(48*mib, false); !errors.Is(err, unix.ENOENT) {
		t.Errorf("limiting a slot that is gone: %v", err)
	}
}

// Freeze stops all processes, and Thaw lets them continue. Both accept a box that is gone.
func TestFreeze(t *testing.T) {
	b := newBox(t, Limits{})
	s, _ := b.slot(t)
	c := b.start(t, s, "sleep")
	c.line(t)
	for range 2 {
		check(t, b.Freeze(t.Context()))
	}
	events, err := linux.ReadFileAt(b.v2.box, s.path()+"/cgroup.events")
	if err != nil || events != "populated 1\nfrozen 1\n" {
		t.Errorf("%q, %v", events, err)
	}
	check(t, b.Thaw())
	check(t, b.Thaw())
	// Frozen processes can still be killed.
	check(t, b.Freeze(t.Context()))
	check(t, s.Kill())
	c.wait(t)
	check(t, b.Thaw())
}

// On a host that cannot limit memory, a slot's limit fails even if the box accepts degraded
// limits.
func TestSlotMemoryUnenforceable(t *testing.T) {
	b := newBoxOn(t, bare(t), Limits{})
	s, _ := b.slot(t)
	for _, degraded := range []bool{false, true} {
		err := s.LimitMemory(64*mib, degraded)
		u, ok := errors.AsType[*UnenforceableError](err)
		if !ok || u.Limit != "memory" || u.Mend == "" || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v", err)
		}
	}
	if got, err := s.MemoryLimit(); got != Unlimited || err != nil {
		t.Errorf("%d, %v", got, err)
	}
}
