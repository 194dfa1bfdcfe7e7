// Package cgroups keeps one cgroup subtree per box: limits in; use, OOM kills and
// refused forks out; kill and remove. It knows boxes by a name only, starts no
// process, and is used by the root process that builds boxes ([Host], [Group],
// [Slot]) and by whoever reads receipts from descriptors ([SlotStats]).
//
// # Layout
//
// On the cgroup2 hierarchy, with or without controllers:
//
//	boxd/<box>            backstop limits; cgroup.procs belongs to the agent's user
//	boxd/<box>/init       PID 1 of the box
//	boxd/<box>/work       the limits of the box
//	boxd/<box>/work/<n>   one slot per command, made fresh and thrown away
//
// A command is born in its slot by clone3(CLONE_INTO_CGROUP), which needs write
// permission on cgroup.procs of the slot and of the common ancestor of the
// parent's cgroup and the slot: boxd/<box>.
//
// On each v1 hierarchy that carries memory, pids or cpu (hybrid hosts):
//
//	boxd/<box>            backstop limits; PID 1 of the box
//	boxd/<box>/work       the limits of the box
//	boxd/<box>/work/<n>   the slot
//
// There is no birth into a cgroup on v1. What is cheap there is that a single
// thread moves itself by writing "0" to a tasks file: 5 to 15 µs, because the
// kernel then skips cgroup_threadgroup_rwsem. Moving any other process costs an
// RCU grace period of 5 to 10 ms, so nobody ever does it. See [Slot.Tasks].
//
// # The backstop
//
// PID 1 of a box is not under the limits of the box, so that an out-of-memory
// kill or a fork bomb hits commands. But it shares the box with hostile code, so
// boxd/<box> has the same limits plus a fixed headroom: a subverted PID 1 cannot
// exhaust the host either.
//
// # Descriptors
//
// [Detect] opens the hierarchies once; everything later goes through these
// descriptors, so it works after /sys/fs/cgroup was mounted over.
package cgroups
