package cgroups

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

const mib = 1 << 20

// value is n, or -1 if it is absent, for messages and comparisons.
func value(n *int64) int64 {
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
	if value(hogUse.OOMKills) < 1 || value(quietUse.OOMKills) != 0 {
		t.Errorf("OOM kills %d for the hog and %d for the bystander, want ≥ 1 and 0", value(hogUse.OOMKills), value(quietUse.OOMKills))
	}
	if peak := value(hogUse.MemoryPeak); peak < 64*mib || peak > 96*mib {
		t.Errorf("hog's peak %d, want near the limit", peak)
	}
	if peak := value(quietUse.MemoryPeak); peak < 16*mib || peak > 40*mib {
		t.Errorf("bystander's peak %d, want its own 16 MiB and a little", peak)
	}
	if populated, err := quietStats.Populated(); err != nil || !populated {
		t.Errorf("bystander alive: %v, %v", populated, err)
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
		if n := value(use.BoxPIDsRefused); n != refused {
			t.Errorf("box counts %d refused forks, the bomb %d", n, refused)
		}
	case value(use.PIDsRefused) != refused || value(quietUse.PIDsRefused) != 0:
		t.Errorf("refused forks: %d and %d, want %d and 0", value(use.PIDsRefused), value(quietUse.PIDsRefused), refused)
	}
	if use.PIDsPeak != nil && value(use.PIDsPeak)+value(quietUse.PIDsPeak) < limit {
		t.Errorf("peaks %d and %d, want at least the limit together", value(use.PIDsPeak), value(quietUse.PIDsPeak))
	}
	// A box that is full takes no further command.
	s, _ := b.slot(t)
	c := newChild(t, s, "true")
	done := make(chan error)
	b.spawn <- func() { done <- c.cmd.Start() }
	if err := <-done; !errors.Is(err, unix.EAGAIN) {
		t.Errorf("starting a command in a full box: %v, want EAGAIN", err)
	}
	c.started()
}

// TestPIDsPeakIsTheCommandsOwn: the spawner is not in it.
func TestPIDsPeakIsTheCommandsOwn(t *testing.T) {
	b := newBox(t, Limits{PIDs: 64})
	s, stats := b.slot(t)
	c := b.start(t, s, "forks", "0")
	c.line(t)
	use, err := stats.Read()
	check(t, err)
	now := b.number(t, "pids", "work/"+s.Name+"/pids.current", "work/"+s.Name+"/pids.current")
	// The exec in the test role ends the threads of the runtime before it.
	if use.PIDsPeak != nil && (value(use.PIDsPeak) < now || value(use.PIDsPeak) > now+8) {
		t.Errorf("peak %d with %d processes now", value(use.PIDsPeak), now)
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
	used := time.Duration(value(use.UserUsec)+value(use.SystemUsec)) * time.Microsecond
	if limit := time.Duration(0.3*float64(wall)) + 150*time.Millisecond; used > limit {
		t.Errorf("used %v of CPU in %v, want at most %v", used, wall, limit)
	}
	if throttled := value(use.Alone().ThrottledUsec); throttled < 1000 {
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
	b.start(t, burner, "burn", "500ms").wait(t)
	after, err := idleStats.Read()
	check(t, err)
	t.Logf("idle: %s", after)
	if after.ThrottledUsec != nil && value(after.ThrottledUsec)-max(value(before.ThrottledUsec), 0) > 20_000 {
		t.Errorf("an idle command was throttled for %d µs by another's burning", value(after.ThrottledUsec))
	}
	if value(after.BoxThrottledUsec) == 0 {
		t.Error("the box was not throttled")
	}
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
	if use, err := stats.Read(); err != nil || value(use.OOMKills) != 0 {
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

// bare is this host as if no controller existed.
func bare(t *testing.T) *Host {
	h := testHost(t)
	return &Host{mode: Unified, v2: &hierarchy{dir: h.v2.dir}}
}

func TestUnenforceable(t *testing.T) {
	h := bare(t)
	for _, c := range []struct {
		limit string
		l     Limits
	}{
		{"memory", Limits{Memory: 64 * mib}},
		{"pids", Limits{PIDs: 10}},
		{"cpus", Limits{CPUs: 1}},
	} {
		id := testID()
		_, err := h.Create(id, Owner{}, c.l)
		u, ok := errors.AsType[*UnenforceableError](err)
		if !ok || u.Limit != c.limit || u.Mend == "" || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c.l, err)
		}
		mustBeGone(t, h, id)
	}
}

func TestDegraded(t *testing.T) {
	b := newBoxOn(t, bare(t), Limits{Memory: 64 * mib, PIDs: 10, CPUs: 1, AllowDegraded: true})
	var names []string
	for _, d := range b.Degraded {
		names = append(names, d.Limit)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"cpus", "memory", "pids"}) {
		t.Errorf("degraded: %v", names)
	}
	check(t, b.Set(Limits{Memory: Unlimited, PIDs: 20, AllowDegraded: true}))
	if len(b.Degraded) != 2 {
		t.Errorf("degraded after giving memory up: %v", b.Degraded)
	}
	s, stats := b.slot(t)
	b.start(t, s, "true").wait(t)
	check(t, stats.WaitEmpty(t.Context()))
	if u, err := stats.Read(); err != nil || u.SystemUsec == nil {
		t.Errorf("%s, %v", u, err)
	}
}

// TestBusyParent: processes in the cgroup above boxd/ forbid controllers there.
func TestBusyParent(t *testing.T) {
	real := testHost(t)
	name := "boxd-" + testID()
	check(t, linux.MkdirAt(real.v2.dir, name, 0o755))
	t.Cleanup(func() {
		waitFor(t, func() bool { return linux.RmdirAt(real.v2.dir, name) == nil })
	})
	enable(real.v2.dir, map[string]error{})
	sub, err := openDir(real.v2.dir, name)
	check(t, err)
	t.Cleanup(func() { sub.Close() })
	h := &Host{mode: Unified, v2: &hierarchy{dir: sub, controllers: real.v2.controllers}}
	c := newChild(t, nil, "sleep")
	c.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(sub.Fd())}
	check(t, c.cmd.Start())
	c.started()
	_, err = h.Create(testID(), Owner{}, Limits{Memory: 64 * mib})
	u, ok := errors.AsType[*UnenforceableError](err)
	if !ok {
		t.Fatalf("limit below a cgroup with processes: %v", err)
	}
	t.Log(u)
	if real.v2.has("memory") && !strings.Contains(u.Mend, "move them into a child cgroup") {
		t.Errorf("mend: %s", u.Mend)
	}
	c.cmd.Process.Kill()
	c.wait(t)
}

// waitFor polls a condition that has no event.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("condition did not come true in 5 s")
}

func TestEnforcement(t *testing.T) {
	h := testHost(t)
	list := h.Enforcement()
	if len(list) != 4 {
		t.Fatalf("%d rows", len(list))
	}
	for _, e := range list {
		t.Logf("%+v", e)
		if !e.Enforced && e.Mend == "" || e.Enforced && e.By == "" {
			t.Errorf("%+v: incomplete", e)
		}
	}
	for _, e := range bare(t).Enforcement() {
		if e.Enforced && e.Limit != "swap" {
			t.Errorf("%+v on a host without controllers", e)
		}
	}
	if ids, err := h.List(); err != nil || slices.ContainsFunc(ids, func(id string) bool { return strings.HasPrefix(id, "probe-") }) {
		t.Errorf("%v, %v: the probe is left", ids, err)
	}
}
