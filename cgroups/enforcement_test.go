package cgroups

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/linux"
)

// bare returns this host as if it had no controllers.
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

// TestBusyParent: processes in the cgroup above boxd/ prevent enabling controllers there.
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
	if len(list) != 5 {
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
