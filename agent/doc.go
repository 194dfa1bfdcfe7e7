// Package agent is PID 1 of a box: it starts commands, reaps every process of
// the box, and tells the client how its commands ended.
//
// It runs as the box's user 65535, which no command can be, with the four
// capabilities that a birth needs, not dumpable, and under the same seccomp
// policy as its commands. It never touches the output of a command: the
// descriptors come from the client and go to the child. Managed processes are the
// exception: their stdio is kept here, so that it outlives every client, in rings
// of fixed size that clients read without asking.
//
// It decides nothing about limits, timeouts or verdicts, and holds nothing that
// would help a command that takes it over: everything that counts is measured
// from outside the box.
package agent
