package cgroups

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// orMinus returns *n, or -1 if it is unknown, for messages and comparisons.
func orMinus(n *int64) int64 {
	if n == nil {
		return -1
	}
	return *n
}

func TestMemoryLimitKillsOnlyTheHog(t *testing.T) {
	b := newBox(t, Limits{Memory: 96 * mib})
	quiet, quietStats := b.slot(t)
	greedy, greedyStats := b.slot(t)
	bystander := b.start(t, quiet, "hog", fmt.Sprint(16*mib))
	bystander.line(t)
	hog := b.start(t, greedy, "hog", fmt.Sprint(256*mib))
	if sig := hog.wait(t); sig != syscall.SIGKILL {
		t.Errorf("hog ended by %v", sig)
	}
	check(t, greedyStats.WaitEmpty(t.Context()))
	hogUse, err := greedyStats.Read()
	check(t, err)
	quietUse, err := quietStats.Read()
	check(t, err)
	t.Logf("hog: %s", hogUse)
	if orMinus(hogUse.OOMKills) < 1 || orMinus(quietUse.OOMKills) != 0 {
		t.Errorf("OOM kills %d for the hog and %d for the bystander, want ≥ 1 and 0", orMinus(hogUse.OOMKills), orMinus(quietUse.OOMKills))
	}
	if peak := orMinus(hogUse.MemoryPeak); peak < 64*mib || peak > 96*mib {
		t.Errorf("hog's peak %d, want near the limit", peak)
	}
	if peak := orMinus(quietUse.MemoryPeak); peak < 16*mib || peak > 40*mib {
		t.Errorf("bystander's peak %d, want its own 16 MiB and a little", peak)
	}
	if populated, err := quietStats.Populated(); err != nil || !populated {
		t.Errorf("bystander alive: %v, %v", populated, err)
	}
}

// TestOutOfMemoryEndsTheWholeCommand: on cgroup2 it does; v1 kills only one process.
func TestOutOfMemoryEndsTheWholeCommand(t *testing.T) {
	b := newBox(t, Limits{Memory: 64 * mib})
	s, stats := b.slot(t)
	helper := b.start(t, s, "sleep")
	helper.line(t)
	b.start(t, s, "hog", fmt.Sprint(256*mib)).wait(t)
	if b.v1Tree("memory") == nil {
		if sig := helper.wait(t); sig != syscall.SIGKILL {
			t.Errorf("the other process of the command ended by %v", sig)
		}
	} else if populated, err := stats.Populated(); err != nil || !populated {
		t.Errorf("the other process of the command: %v, %v", populated, err)
	}
	if use, err := stats.Read(); err != nil || orMinus(use.OOMKills) < 1 {
		t.Errorf("%s, %v: want an OOM kill", use, err)
	}
}

func TestPIDsLimitIsExactAndAttributed(t *testing.T) {
	const limit = 24
	b := newBox(t, Limits{PIDs: limit})
	quiet, quietStats := b.slot(t)
	greedy, greedyStats := b.slot(t)
	b.start(t, quiet, "sleep").line(t)
	bomb := b.start(t, greedy, "forks", "100")
	said := bomb.line(t)
	var got, refused int64
	fmt.Sscan(said, &got, &refused)
	now := b.number(t, "pids", "work/pids.current", "work/pids.current")
	if b.v1Tree("pids") != nil {
		now -= SpawnerThreads
	}
	if now != limit || got+refused != 100 || got < 1 {
		t.Errorf("%d processes in the box (limit %d), %d forks worked, %d refused", now, limit, got, refused)
	}
	use, err := greedyStats.Read()
	check(t, err)
	quietUse, err := quietStats.Read()
	check(t, err)
	t.Logf("bomb: %s", use)
	switch {
	case use.PIDsRefused == nil: // Linux 6.11 on cgroup2: told for the box only
		if n := orMinus(use.BoxPIDsRefused); n != refused {
			t.Errorf("box counts %d refused forks, the bomb %d", n, refused)
		}
	case orMinus(use.PIDsRefused) != refused || orMinus(quietUse.PIDsRefused) != 0:
		t.Errorf("refused forks: %d and %d, want %d and 0", orMinus(use.PIDsRefused), orMinus(quietUse.PIDsRefused), refused)
	}
	if use.PIDsPeak != nil && orMinus(use.PIDsPeak)+orMinus(quietUse.PIDsPeak) < limit {
		t.Errorf("peaks %d and %d, want at least the limit together", orMinus(use.PIDsPeak), orMinus(quietUse.PIDsPeak))
	}
	// No further command starts in a box that is full.
	s, _ := b.slot(t)
	c := newChild(t, s, "true")
	done := make(chan error)
	b.spawn <- func() { done <- c.cmd.Start() }
	if err := <-done; !errors.Is(err, unix.EAGAIN) {
		t.Errorf("starting a command in a full box: %v, want EAGAIN", err)
	}
	c.started()
}

// TestPIDsPeakIsTheCommandsOwn: the peak does not include the spawner.
func TestPIDsPeakIsTheCommandsOwn(t *testing.T) {
	b := newBox(t, Limits{PIDs: 64})
	s, stats := b.slot(t)
	c := b.start(t, s, "forks", "0")
	c.line(t)
	use, err := stats.Read()
	check(t, err)
	now := b.number(t, "pids", "work/"+s.Name+"/pids.current", "work/"+s.Name+"/pids.current")
	// The exec in the test role ends the threads of the runtime before it.
	if use.PIDsPeak != nil && (orMinus(use.PIDsPeak) < now || orMinus(use.PIDsPeak) > now+8) {
		t.Errorf("peak %d with %d processes now", orMinus(use.PIDsPeak), now)
	}
}

func TestCPULimit(t *testing.T) {
	b := newBox(t, Limits{CPUs: 0.3})
	s, stats := b.slot(t)
	begin := time.Now()
	c := b.start(t, s, "burn", "800ms")
	c.wait(t)
	wall := time.Since(begin)
	use, err := stats.Read()
	check(t, err)
	t.Logf("in %v: %s", wall, use)
	used := time.Duration(orMinus(use.UserUsec)+orMinus(use.SystemUsec)) * time.Microsecond
	if limit := time.Duration(0.3*float64(wall)) + 150*time.Millisecond; used > limit {
		t.Errorf("used %v of CPU in %v, want at most %v", used, wall, limit)
	}
	if throttled := orMinus(use.Alone().ThrottledUsec); throttled < 1000 {
		t.Errorf("throttled for %d µs, want some", throttled)
	}
}

func TestThrottlingOfAnother(t *testing.T) {
	b := newBox(t, Limits{CPUs: 0.2})
	burner, _ := b.slot(t)
	idle, idleStats := b.slot(t)
	b.start(t, idle, "sleep").line(t)
	before, err := idleStats.Read()
	check(t, err)
	box := func() int64 {
		n, err := throttledUsec(b)
		check(t, err)
		return n
	}
	boxBefore := box()
	b.start(t, burner, "burn", "500ms").wait(t)
	after, err := idleStats.Read()
	check(t, err)
	t.Logf("idle: %s", after)
	// Not zero: the Go runtime of the idle command wakes up now and then, and is throttled too.
	own := orMinus(after.ThrottledUsec) - max(orMinus(before.ThrottledUsec), 0)
	if after.ThrottledUsec != nil && own > (box()-boxBefore)/2 {
		t.Errorf("an idle command was throttled for %d µs, the box for %d", own, box()-boxBefore)
	}
	if box() == boxBefore {
		t.Error("the box was not throttled")
	}
}

// throttledUsec returns for how long the commands of a box were throttled.
func throttledUsec(b *testBox) (int64, error) {
	tree := b.v2
	if v1 := b.v1Tree("cpu"); v1 != nil {
		tree = v1
	}
	f, err := openStat(tree.box, "work/cpu.stat", StatBoxCPU)
	if err != nil {
		return 0, err
	}
	s := &SlotStats{files: make([]*os.File, NumStats)}
	s.files[StatBoxCPU] = f
	defer s.Close()
	n, err := s.throttled(StatBoxCPU)
	return orMinus(n), err
}

func TestSetRaisesAndLowers(t *testing.T) {
	b := newBox(t, Limits{Memory: 64 * mib, PIDs: 20, CPUs: 0.5})
	for _, l := range []Limits{
		{Memory: 128 * mib, PIDs: 40, CPUs: 3},
		{Memory: 32 * mib},
		{PIDs: 10, CPUs: 0.01},
		{Memory: Unlimited, PIDs: Unlimited, CPUs: Unlimited},
		{Memory: 64*mib + 5, PIDs: 1, CPUs: 1.5},
	} {
		want := b.Limits().merge(l).normal()
		if err := b.Set(l); err != nil {
			t.Fatalf("%+v: %v", l, err)
		}
		m, p, c := b.inForce(t)
		if m != want.Memory || p != want.PIDs || c != quota(want.CPUs) || b.Limits() != want {
			t.Errorf("%+v: %d, %d, %d in force, Limits() %+v", l, m, p, c, b.Limits())
		}
	}
}

// TestSetAtOnce: callers that change different limits do not undo each other's
// changes.
func TestSetAtOnce(t *testing.T) {
	b := newBox(t, Limits{PIDs: 20, CPUs: 1})
	var all sync.WaitGroup
	for _, change := range []func(l *Limits, n int){
		func(l *Limits, n int) { l.PIDs = int64(20 + n) },
		func(l *Limits, n int) { l.CPUs = 1 + float64(n)/100 },
		func(l *Limits, n int) { l.Memory = int64(64+n) * mib },
	} {
		all.Go(func() {
			for n := range 300 {
				var l Limits
				change(&l, n)
				if err := b.Set(l); err != nil {
					t.Error(err)
				}
				now := b.Limits()
				if now != now.merge(l) {
					t.Errorf("%+v was set, and soon after %+v is in force", l, now)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestSetIsAllOrNothing(t *testing.T) {
	b := newBox(t, Limits{Memory: 64 * mib, PIDs: 20, CPUs: 0.5})
	if err := b.Set(Limits{Memory: 128 * mib, CPUs: 1, PIDs: 1 << 40}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a number of pids that no kernel takes: %v", err)
	}
	m, p, c := b.inForce(t)
	if m != 64*mib || p != 20 || c != quota(0.5) {
		t.Errorf("%d, %d, %d in force after a failed Set", m, p, c)
	}
}

func TestLoweringMemoryBelowUse(t *testing.T) {
	b := newBox(t, Limits{Memory: 128 * mib})
	s, stats := b.slot(t)
	c := b.start(t, s, "hog", fmt.Sprint(64*mib))
	c.line(t)
	err := b.Set(Limits{Memory: 32 * mib, PIDs: 10})
	var inUse *InUseError
	if !errors.As(err, &inUse) || inUse.Usage < 64*mib || inUse.Want != 32*mib {
		t.Errorf("lowering below use: %v", err)
	}
	if m, p, _ := b.inForce(t); m != 128*mib || p != Unlimited {
		t.Errorf("%d, %d in force", m, p)
	}
	if b.v1Tree("memory") == nil {
		if high := b.number(t, "memory", "work/memory.high", ""); high != Unlimited {
			t.Errorf("memory.high %d is left", high)
		}
	}
	if use, err := stats.Read(); err != nil || orMinus(use.OOMKills) != 0 {
		t.Errorf("%s, %v: lowering must not kill", use, err)
	}
	check(t, b.Set(Limits{Memory: 100 * mib}))
}

func TestCreateFailureLeavesNothing(t *testing.T) {
	h := testHost(t)
	id := testID()
	if _, err := h.Create(id, Owner{}, Limits{Memory: 64 * mib, PIDs: 1 << 40}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a number of pids that no kernel takes: %v", err)
	}
	mustBeGone(t, h, id)
}

func TestSwapIsOff(t *testing.T) {
	b := newBox(t, Limits{Memory: 64 * mib})
	if b.v1Tree("memory") == nil {
		if n := b.number(t, "memory", "work/memory.swap.max", ""); n != 0 {
			t.Errorf("memory.swap.max %d", n)
		}
		return
	}
	if !exists(b.v1Tree("memory").box, "memory.memsw.limit_in_bytes") {
		return
	}
	if n := b.number(t, "memory", "", "work/memory.memsw.limit_in_bytes"); n != 64*mib {
		t.Errorf("memsw limit %d, want that of memory", n)
	}
}
