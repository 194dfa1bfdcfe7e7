package session

import (
	"syscall"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/choose"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// State of a session.
type State string

// The states. Failed: PID 1 of the box is gone; the next use builds a new box on the same
// workspace. Stopped: there is no box; the next use builds one.
const (
	Creating State = "creating"
	Running  State = "running"
	Stopping State = "stopping"
	Stopped  State = "stopped"
	Failed   State = "failed"
)

// View is a session at one moment. Callers must not change its lists.
type View struct {
	Key
	State State
	// Reason says in one line why the session is failed or stopping.
	Reason string
	// Created and Recreated say what the call that returned the View did: it created the
	// session, or built a new box because the old one was lost.
	Created   bool
	Recreated bool
	// Reclaimed is how many bytes of its memory the call that returned the View gave to the host; nil: that was not
	// asked for.
	Reclaimed *int64
	// Generation counts the boxes of the session, from 1.
	Generation int
	Box        string // ID; empty without a box
	// Resolved is what the session has, including live changes.
	Resolved policy.Resolved
	// ImageDigest is the digest that the image had when the session was created; empty for "host".
	ImageDigest string
	// NetworkOff says why its box has no network although Resolved has one; empty: it is on, or Resolved
	// has none.
	NetworkOff string
	// Sensitive says since when and why it has no network for good; nil: it is not sensitive.
	Sensitive *spec.Sensitive
	// Volumes are the named volumes among the mounts of Resolved.
	Volumes []spec.VolumeWish
	// Published are the ports of the host that lead into it.
	Published []PublishedPort
	// Execs and Processes count what runs now.
	Execs     int
	Processes int
	// PausedAt is since when the session is paused; zero: it is not.
	PausedAt  time.Time
	CreatedAt time.Time
	LastUsed  time.Time
	// ExpiresAt is when the session ends if it is not used before; zero: never, or not
	// while something runs in it.
	ExpiresAt time.Time
	// WorkspaceBytes is the last measured size of the workspace; 0 if it was never
	// measured.
	WorkspaceBytes int64
	// Built is what its box was built with, and why; zero without a box.
	Built choose.Choice
	// Unenforced says which limit of the workspace the host cannot enforce, and why; empty:
	// none. Only allow_degraded permits such a session.
	Unenforced string
}

// ProcessState is the state of a managed process.
type ProcessState string

// The states. Failed: its probes gave it up, or the box was lost, so there is no exit code.
//
// A process with Ready is starting until its probe has succeeded once, and then ready, or
// unready while the probe fails. Restarting: it has failed and is started again in a while.
const (
	ProcessStarting ProcessState = "starting"
	ProcessRunning  ProcessState = "running"
	ProcessStopping ProcessState = "stopping"
	ProcessExited   ProcessState = "exited"
	ProcessStopped  ProcessState = "stopped"
	ProcessFailed   ProcessState = "failed"

	ProcessReady      ProcessState = "ready"
	ProcessUnready    ProcessState = "unready"
	ProcessRestarting ProcessState = "restarting"
)

// Ended reports whether s is final.
func (s ProcessState) Ended() bool {
	return s == ProcessExited || s == ProcessStopped || s == ProcessFailed
}

// ProcessView is a managed process at one moment.
type ProcessView struct {
	Session Key
	ID      string
	State   ProcessState
	// PID is the one in the box; 0 before and after the process runs.
	PID  int
	Args []string // the first 4 KiB
	TTY  bool
	ProcessSettings
	// ExitCode is nil unless the process exited by itself; Signal is 0 unless a signal
	// ended it.
	ExitCode  *int
	Signal    syscall.Signal
	Verdict   engine.Verdict // empty while it runs
	Limit     string
	StartedAt time.Time
	EndedAt   time.Time
	// ReadyAt is when it was ready for the first time; zero: not yet, or it has no Ready.
	ReadyAt time.Time
	// Restarts counts the restarts in a row; RestartAt is when the next one comes.
	Restarts  int
	RestartAt time.Time
	// Failure says why it has failed, or the run before that, and FailureOutput is the end of
	// what that one had written. They are kept only of processes with Ready or Restart, until
	// the process is ready.
	Failure, FailureOutput string
	// Denied is what boxd refused to the session while the process ran, or has refused since it
	// started, most frequent first, at most 20; others may have asked for it.
	Denied []Denial
	// Box is the ID of the box in which it runs, and Key its name there.
	Box string
	Key string
}
