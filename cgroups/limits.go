package cgroups

import (
	"fmt"
	"math"
	"os"
)

// Unlimited is the value of a limit that shall not be set.
const Unlimited = -1

// Limits bound what all commands of a box use together. A zero field means "no
// limit" to [Host.Create] and "leave as it is" to [Group.Set]; Unlimited means
// none. The ranges are checked by whoever takes them from a user.
type Limits struct {
	Memory int64   // bytes of RAM, rounded down to pages; swap is off then
	PIDs   int64   // processes and threads at once
	CPUs   float64 // cores' worth of time, at least 0.01
	// AllowDegraded accepts a limit that this host cannot enforce: it is then
	// listed in Group.Degraded.
	AllowDegraded bool
}

// The headroom of the backstop above the limits of the box, for PID 1 of the box
// and the buffers that it keeps: 192 MiB for the output of managed processes
// (wire.MaxRings), and 64 MiB for everything else.
const (
	headroomMemory = (64 + 192) << 20
	headroomPIDs   = 64
	headroomCPUs   = 1.0
)

// SpawnerThreads is how many threads of PID 1 live at [Group.HomeTasks], where
// the pids limit is on v1. They are not counted against the box: the agent must
// have just as many.
const SpawnerThreads = 2

// cpuPeriod is the period of CPU quotas in µs, the kernel's default.
const cpuPeriod = 100_000

// UnenforceableError is a limit that this host cannot enforce.
type UnenforceableError struct {
	Limit  string // "memory", "swap", "kernel memory", "pids" or "cpus"
	Reason string // what is missing
	Mend   string // what to do about it
}

func (e *UnenforceableError) Error() string {
	return fmt.Sprintf("limit %q cannot be enforced on this host: %s: %s", e.Limit, e.Reason, e.Mend)
}

// InUseError is a memory limit below what the box uses now, after the kernel
// reclaimed what it could. Nothing was changed and nothing was killed.
type InUseError struct {
	Want, Usage int64 // bytes
	// Sockets are the bytes that sockets hold, if it is their share of Want that is too
	// small and not Want itself.
	Sockets int64
	Err     error // what the kernel said, if it was the kernel
}

func (e *InUseError) Error() string {
	if e.Sockets > 0 {
		return fmt.Sprintf("lowering memory to %d bytes: that leaves sockets 1/%d of it and they hold %d bytes: end commands first, or choose a higher limit", e.Want, SocketShare, e.Sockets)
	}
	return fmt.Sprintf("lowering memory to %d bytes: the box uses %d bytes: end commands first, or choose a higher limit", e.Want, e.Usage)
}

func (e *InUseError) Unwrap() error { return e.Err }

// merge returns l with the fields of change that are not zero.
func (l Limits) merge(change Limits) Limits {
	if change.Memory != 0 {
		l.Memory = change.Memory
	}
	if change.PIDs != 0 {
		l.PIDs = change.PIDs
	}
	if change.CPUs != 0 {
		l.CPUs = change.CPUs
	}
	l.AllowDegraded = change.AllowDegraded
	return l
}

// normal returns l with Unlimited where nothing is limited, and with memory
// rounded as the kernel does it.
func (l Limits) normal() Limits {
	if l.Memory <= 0 {
		l.Memory = Unlimited
	} else {
		l.Memory -= l.Memory % int64(os.Getpagesize())
	}
	if l.PIDs <= 0 {
		l.PIDs = Unlimited
	}
	if l.CPUs <= 0 {
		l.CPUs = Unlimited
	}
	return l
}

// quota returns cores' worth of time as µs per period.
func quota(cpus float64) int64 {
	if cpus < 0 {
		return Unlimited
	}
	return int64(math.Round(cpus * cpuPeriod))
}

// plus adds headroom to a limit.
func plus[T int64 | float64](limit, headroom T) T {
	if limit < 0 {
		return Unlimited
	}
	return limit + headroom
}
