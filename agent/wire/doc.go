// Package wire is the protocol of boxd-init: frames with descriptors over a Unix stream
// socket, and the messages that PID 1 of a box understands.
//
// The conversation with an agent:
//
//	client                                   agent
//	  | -- Spawn   id=1, fds: stdio, cgroup --> |
//	  | <- Started id=1, pid ------------------ |   or Failed id=1, step, errno
//	  | -- Signal  id=1, signo ---------------> |   any time, any number
//	  | <- Exited  id=1, wait status ---------- |   exactly once after Started
//
// Any number of ids may be in use at once. The client chooses them, and uses each only once
// per connection. The launcher opens the first connection and speaks first:
//
//	launcher                                 agent
//	  | -- Init, fds: listener, home tasks ---> |
//	  | <- Ready ------------------------------ |   or Failed
//
// A zygote is an interpreter that the agent starts as it starts a command, and that makes
// spares: children that wait for a command. Zygotes and spares have ids as commands do. A
// command that a spare takes over has the spare's id, and so its end is reported once:
//
//	client                                   agent
//	  | -- Zygote  id=1, fds as Spawn --------> |
//	  | <- Started id=1 ----------------------- |   or Failed
//	  | <- Warm    id=1, reason if it fails --- |
//	  | -- Spare   id=2, zygote=1, fds: slot -> |
//	  | <- Waiting id=2 ----------------------- |   or Failed
//	  | -- Use     id=2, fds: stdio ----------> |
//	  | <- Taken   id=2 ----------------------- |   or Started, if the spare executes the program
//	  |                                         |   or Failed: StepSpare, see there
//	  | <- Exited  id=2, or 1 ----------------- |   once after Waiting, and after Started of 1;
//	                                                never after Failed
//
// The agent keeps the stdio of managed processes, so that they outlive every client. They
// have a separate connection of the same kind. The client chooses the ids of requests; all
// other frames about a process have as their id the number that the agent gave it:
//
//	client                                   agent
//	  | -- Launch  id, fds: cgroup, pty ------> |
//	  | <- Managed id, number, fds: rings ----- |   or Failed
//	  | -- List    id ------------------------> |
//	  | <- Managed id, once for each ---------- |
//	  | <- Listed  id ------------------------- |
//	  | -- Watch   number, stream, offset ----> |   any time; a new one replaces the old
//	  | <- Head    number, stream, head ------- |   once, when head > offset or at the end
//	  | -- Release number, stream, offset ----> |
//	  | -- Input, CloseInput  number ---------> |
//	  | <- Accepted number, offset ------------ |
//	  | -- ManagedSignal, Resize  number -----> |
//	  | <- Ended   number, status ------------- |   to the last client that launched or listed
//	  | -- Forget  id, number ----------------> |   once it has ended
//	  | <- Forgotten id ----------------------- |   or Failed
//
// Output never travels in frames: each stream is a ring in a sealed memfd, which
// the agent fills and the client reads, see [RingHeader]. The agent sends Ended when the
// process was reaped and its streams have ended. If a background process still holds them, it
// has EndDelay to close them. Then they end with the bytes that are in the pipe at that
// moment, for which the ring has kept room. If the process has enlarged its pipe, the room may
// not suffice, and the oldest bytes are overwritten another EndDelay later. So the end of a
// process never waits for a reader.
//
// A frame is a header of 12 bytes, all integers little endian, and a body:
//
//	offset  size
//	     0     4   length of the body, 0 … MaxBody
//	     4     1   type
//	     5     1   number of descriptors that belong to the frame, 0 … MaxFDs
//	     6     2   zero
//	     8     4   id
//
// Descriptors travel with SCM_RIGHTS on the first byte of the frame, so they
// never arrive after the frame that they belong to.
//
// Both sides treat the other as hostile: a frame that breaks a bound ends the
// connection, and so does one that stays incomplete for FrameTimeout. From the first user
// command on, the client treats the agent as compromised.
package wire
