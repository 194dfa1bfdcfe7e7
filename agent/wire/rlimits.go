package wire

import "golang.org/x/sys/unix"

// BoxRlimits are the resource limits of every process of a box, PID 1 included.
var BoxRlimits = []Rlimit{
	// No core dumps. A dump would carry the box's memory to the place that the host's
	// core_pattern names, and a pattern that is a pipe starts a program as the host's
	// root. A limit of 0 does not stop that. A limit of 1 does, and is too small for a
	// core file (core(5); do_coredump in fs/coredump.c).
	{Resource: unix.RLIMIT_CORE, Soft: 1, Hard: 1},
	// Resources that the kernel accounts per user; a box is a user of its own.
	{Resource: unix.RLIMIT_SIGPENDING, Soft: 4096, Hard: 4096},
	{Resource: unix.RLIMIT_MSGQUEUE, Soft: 1 << 20, Hard: 1 << 20},
	{Resource: unix.RLIMIT_MEMLOCK, Soft: 8 << 20, Hard: 8 << 20},
}
