package cgroups

import (
	"cmp"
	"fmt"
	"math"
	"os"
)

// Unlimited is the value of a limit that is not set.
const Unlimited = -1

// Limits bound the usage of all commands of a box together. A zero field means "no
// limit" to [Host.Create] and "leave as it is" to [Group.Set]; Unlimited means no
// limit. This package does not check ranges.
type Limits struct {
	Memory int64   // bytes of RAM, rounded down to pages; a box with a limit cannot swap
	PIDs   int64   // processes and threads at once
	CPUs   float64 // cores' worth of time, at least 0.01
	// AllowDegraded accepts limits that this host cannot enforce, and lists them in
	// Group.Degraded.
	AllowDegraded bool
}

// The headroom of the backstop above the limits of the box, for PID 1 of the box and its
// buffers: 192 MiB for the output of managed processes (wire.MaxRings), and 64 MiB for
// everything else.
const (
	headroomMemory = (64 + 192) << 20
	headroomPIDs   = 64
	headroomCPUs   = 1.0
)

// SpawnerThreads is how many threads of PID 1 live in the cgroups of [Group.HomeTasks],
// where the pids limit is on v1. The limit is higher by this number, so the agent must
// have exactly as many.
const SpawnerThreads = 2

// cpuPeriod is the period of CPU quotas in µs, the kernel's default.
const cpuPeriod = 100_000

// UnenforceableError reports a limit that this host cannot enforce.
type UnenforceableError struct {
	Limit  string // "memory", "swap", "kernel memory", "pids" or "cpus"
	Reason string // what is missing
	Mend   string // what to do about it
}

func (e *UnenforceableError) Error() string {
	return fmt.Sprintf("limit %q cannot be enforced on this host: %s: %s", e.Limit, e.Reason, e.Mend)
}

// InUseError reports a memory limit below the current usage of the box, after the kernel has
// reclaimed what it could. Nothing was changed or killed.
type InUseError struct {
	Want, Usage int64 // bytes
	// Sockets is how many bytes sockets hold, if their share of Want is too small rather
	// than Want itself.
	Sockets int64
	Err     error // the kernel's error, if the kernel refused
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
	return Limits{
		Memory: cmp.Or(change.Memory, l.Memory), PIDs: cmp.Or(change.PIDs, l.PIDs), CPUs: cmp.Or(change.CPUs, l.CPUs),
		AllowDegraded: change.AllowDegraded,
	}
}

// normal returns l with Unlimited for each limit that is not set, and with Memory rounded
// as the kernel rounds it.
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

// quota converts cores' worth of time to µs per period.
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
