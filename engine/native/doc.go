// Package native is the engine that builds boxes with libcontainer: the half that
// lives in the caller's process.
//
// [Start] runs boxd-init as a launcher, which is the only process that needs to
// be root from then on. Boxes are made by the launcher; commands go straight to
// the agent in the box, with their pipes, so that the launcher is not on the way
// of a command or of its output. What a command used is read here, from cgroup
// files that the launcher opened.
//
// [Connect] uses a launcher that runs as a service instead: it needs no privilege, and
// the boxes outlive the caller. [StartLauncher] makes sure that there is one.
//
// What the box says is not believed: status words are bounded and typed,
// everything else (time, memory, what still runs) is measured outside.
package native
