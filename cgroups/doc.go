// Package cgroups manages one cgroup subtree per box: it sets limits, reports usage,
// OOM kills and refused forks, and kills and removes. It knows boxes only by name and
// starts no process. The root process that builds boxes uses [Host], [Group] and
// [Slot]; an unprivileged process reads usage from descriptors with [SlotStats].
//
// # Layout
//
// On the cgroup2 hierarchy, with or without controllers:
//
//	boxd/<box>            backstop limits; cgroup.procs belongs to the agent's user
//	boxd/<box>/init       PID 1 of the box
//	boxd/<box>/work       the limits of the box
//	boxd/<box>/work/<n>   one slot per command, used once
//
// A command starts in its slot by clone3(CLONE_INTO_CGROUP). This needs write
// permission on cgroup.procs of the slot, and of the common ancestor of the slot and
// the parent's cgroup: boxd/<box>. A process can be moved from one slot to another, which
// needs the same of work.
//
// On each v1 hierarchy with memory, pids or cpu (hybrid hosts):
//
//	boxd/<box>            backstop limits; PID 1 of the box
//	boxd/<box>/work       the limits of the box
//	boxd/<box>/work/<n>   the slot
//
// On v1, a process cannot start in a given cgroup. But a single thread can move itself
// cheaply, by writing "0" to a tasks file: this takes 5 to 15 µs, because the kernel
// skips cgroup_threadgroup_rwsem. Moving any other process costs an RCU grace period of
// 5 to 10 ms, so boxd does that only where no command waits for it. See [Slot.Tasks] and
// [Slot.OpenProcs].
//
// # The backstop
//
// PID 1 of a box is not under the limits of the box, so that an out-of-memory kill or a
// fork bomb hits commands instead. But it shares the box with hostile code, so
// boxd/<box> has the same limits plus a fixed headroom: even a subverted PID 1 cannot
// exhaust the host.
//
// # Descriptors
//
// [Detect] opens the hierarchies once. Everything else uses these descriptors, so it
// works even after something was mounted over /sys/fs/cgroup.
package cgroups
