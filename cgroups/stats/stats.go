// Package stats reads the usage of a box in the metrics that containerd reports of a task, which
// come in the types of github.com/containerd/cgroups/v3.
//
// Linking these types makes every process start later, so neither boxd nor boxd-init links this
// package; boxd-containerd does. For the usage of one command, see cgroups.SlotStats.
package stats

import (
	"fmt"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// Usage is what the cgroups of a task use. A figure that the metrics do not have is nil.
type Usage struct {
	Memory *int64         // bytes, page cache included
	PIDs   *int64         // processes and threads
	CPU    *time.Duration // CPU time since the cgroups were made
}

// Of reads metrics, a pointer to the Metrics of cgroup1/stats or cgroup2/stats.
func Of(metrics any) (u Usage, err error) {
	switch m := metrics.(type) {
	case *v1.Metrics:
		if usage := m.GetMemory().GetUsage(); usage != nil {
			u.Memory = new(int64(usage.GetUsage()))
		}
		if m.GetPids() != nil {
			u.PIDs = new(int64(m.GetPids().GetCurrent()))
		}
		// Its CPU time is of the controller cpuacct, which is a hierarchy of its own on some
		// hosts. boxd makes no cgroups there, so the figure may be that of the whole host.
	case *v2.Metrics:
		if m.GetMemory() != nil {
			u.Memory = new(int64(m.GetMemory().GetUsage()))
		}
		if m.GetPids() != nil {
			u.PIDs = new(int64(m.GetPids().GetCurrent()))
		}
		if m.GetCPU() != nil {
			u.CPU = new(time.Duration(m.GetCPU().GetUsageUsec()) * time.Microsecond)
		}
	default:
		return u, fmt.Errorf("metrics of type %T: must be those of cgroup v1 or of cgroup2", metrics)
	}
	return u, nil
}
