// Package engine is the API for programs that build boxes and run commands in them. A
// box is a set of namespaces, cgroups and a private root file system around untrusted
// commands.
//
// The package declares what goes in ([Spec], [Command], [Managed], [Change]), what
// comes out ([Result], [Receipt], [Verdict]), the errors, and the interfaces that an
// engine implements. It contains no engine: package engine/native builds boxes on Linux.
// Nor does it decide who may do what; package policy and the daemon do that. The fields of
// Spec, Limits, Mount and Change are documented in package engine/spec.
//
//	eng, err := native.Start(ctx, native.Options{InitPath: "/usr/libexec/boxd/boxd-init"})
//	...
//	defer eng.Close()
//	box, err := eng.Create(ctx, engine.Spec{Limits: engine.Limits{Memory: 64 << 20}})
//	...
//	defer box.Remove(ctx)
//	result, err := engine.Run(ctx, box, engine.Command{Args: []string{"python3", "job.py"}, Stdout: os.Stdout})
//	...
//	fmt.Println(result.Verdict, result.Limit) // "oom 64 MiB" if it needed more
//
// # Engine or Service
//
// There are two kinds of engine, which differ in how long a box lives.
//
// The boxes of an [Engine] live no longer than the process that holds it. When that
// process closes the engine, exits or crashes, the kernel and the launcher remove
// everything. That suits a program that builds a box, runs something and is done, such
// as "boxd run".
//
// The boxes of a [Service] outlive the process that created them. A later process
// connects, lists them ([Service].Boxes) and takes them over ([Service].Adopt), or throws
// them away ([Service].Discard). That suits a daemon, which must survive its own crash
// and upgrade without losing its users' work.
//
// The two interfaces are separate so that a program states which lifetime it relies on:
// an Engine cannot adopt boxes, and a program that disconnects from a Service removes none.
//
// Likewise there are two views of a box. [Box] is the small one: run commands, change
// the box, remove it. Most functions need no more; those of package files take a Box.
// [LiveBox], which only a Service returns, adds managed processes, events, usage and ports,
// which are useful in a box that outlives its creator.
//
// # Commands and managed processes
//
// A [Command] is like an [os/exec.Cmd]: its stdio belongs to the caller, and it is killed
// when the caller dies. A process started with [LiveBox].Launch is managed: its stdio is
// kept inside the box in buffers of fixed size, so it keeps running while clients come
// and go, and a client that returns continues at the byte where it stopped.
//
// # Results and errors
//
// How a command ended is a value, not an error: a non-zero exit status, a timeout and a
// kill by a limit are all reported by [Result]. An error means that the command did not
// start, or that something outside of it failed. Test errors with [errors.Is] against the
// conditions below; a bad argument is a [*FieldError] and matches [ErrInvalid].
//
// Everything in a Result except the exit status is measured outside the box. A figure
// that the host cannot measure is nil; none is estimated.
//
// # Zero values
//
// The zero value of every field means its default. In [Limits], [Unlimited] (-1) switches
// a limit off. Sizes are in bytes. Constants named Default…, Min… and Max… in package
// engine/spec give defaults and bounds. Validate methods check a value without touching
// the kernel; Create, Start, Launch and Update call them.
package engine
