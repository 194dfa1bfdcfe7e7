// Package native is the engine that builds boxes on Linux, with namespaces, cgroups and
// libcontainer. It implements the interfaces of package engine.
//
// [Start] returns an [Engine], whose boxes end with the calling process. It needs root.
//
// [Connect] returns a [Service], whose boxes outlive the calling process. It needs no
// privilege: it talks to a launcher that root started with [StartLauncher], or that runs
// as a systemd unit.
//
// # Processes
//
// This package is the caller's half. It is pure Go and makes no privileged system calls.
// The privileged half is the launcher, a separate process of the program boxd-init, which
// creates, changes and removes boxes on request. It is reached over a socket.
//
// The launcher is not involved in running a command. The caller asks the agent, PID 1 of
// the box, directly, passes it the ends of pipes, and afterwards reads what the command
// used from cgroup files that the launcher opened beforehand.
//
// # Trust
//
// The caller treats the agent as compromised from the first command on, because the
// command runs in the same box. From the agent it takes an exit status, checked for its
// form, and nothing else. Time, memory, processes, and whether anything is still alive are
// measured outside the box.
package native
