package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Enforcement says how this host enforces one limit.
type Enforcement struct {
	Limit    string // "memory", "swap", "kernel memory", "pids" or "cpus"
	Enforced bool
	By       string // the file that enforces it, such as "cgroup2 memory.max"
	Note     string // what is weaker than on cgroup2, or why it is not enforced
	Mend     string // what to do about it
}

// enforcers lists the files that enforce each limit, on cgroup2 and on v1.
var enforcers = []struct{ limit, controller, v2, v1, v1Note string }{
	{"memory", "memory", "memory.max", "memory.limit_in_bytes", "an out-of-memory kill ends one process, not the whole command"},
	{"swap", "memory", "memory.swap.max", "memory.memsw.limit_in_bytes", ""},
	{"kernel memory", "memory", "memory.max", socketLimit, "sockets have a quarter of the memory limit beside it; what waits to be accepted is bounded in number only"},
	{"pids", "pids", "pids.max", "pids.max", ""},
	{"cpus", "cpu", "cpu.max", "cpu.cfs_quota_us", ""},
}

// Enforcement tries every limit on a temporary cgroup.
func (h *Host) Enforcement() []Enforcement {
	probe := Limits{Memory: 64 << 20, PIDs: 16, CPUs: 0.5, AllowDegraded: true}
	probeName := fmt.Sprintf("probe-%d", os.Getpid())
	g, err := h.Create(probeName, Owner{}, probe)
	var degraded []*UnenforceableError
	if err == nil {
		degraded = g.Degraded
		err = g.Remove(context.Background())
	}
	mend := "see the cause"
	if errors.Is(err, os.ErrPermission) {
		mend = "run as root, with a writable cgroup file system"
	}
	var list []Enforcement
	for _, f := range enforcers {
		e := Enforcement{Limit: f.limit, Enforced: true, By: "cgroup2 " + f.v2}
		if t := h.of(f.controller); t != nil && t.v1 {
			e.By, e.Note = "cgroup v1 "+f.v1, f.v1Note
		}
		if u, ok := errors.AsType[*UnenforceableError](h.CheckKernelMemory(probeName)); ok && f.limit == u.Limit {
			e = Enforcement{Limit: f.limit, Note: u.Reason, Mend: u.Mend} // even if memory cannot be limited at all
		}
		for _, d := range degraded {
			if d.Limit == f.limit {
				e = Enforcement{Limit: f.limit, Note: d.Reason, Mend: d.Mend}
			}
		}
		if err != nil {
			e = Enforcement{Limit: f.limit, Note: err.Error(), Mend: mend}
		}
		list = append(list, e)
	}
	return list
}
