// Package agent is PID 1 of a box. It starts commands, reaps every process of the box, and
// reports to the client how its commands ended.
//
// The agent runs as user 65535 of the box, as which no command can run. It has the
// capabilities that starting a command needs, is not dumpable, and is subject to the same
// seccomp policy as the commands.
//
// The output of a command never passes through the agent: the client sends the descriptors,
// and the child inherits them. Managed processes are the exception. The agent keeps their
// stdio itself, so that it survives every client, in ring buffers of fixed size that
// clients read without asking.
//
// Interpreters that are kept warm (warm.go) are commands that make commands: see package
// zygote.
//
// The agent makes no decisions about limits, timeouts or verdicts, and holds nothing that
// would help a command that takes it over: everything that counts is measured outside the
// box.
package agent
