package apitypes

import (
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// ProcessRequest starts a managed process.
type ProcessRequest struct {
	ID         string            `json:"id" doc:"Id of the process, once in its session."`
	Argv       []string          `json:"argv,omitempty" doc:"Program and arguments. Either this or shell; without both, the default command of the image."`
	Shell      string            `json:"shell,omitempty" doc:"A line for /bin/sh -c."`
	Env        map[string]string `json:"env,omitempty"`
	Cwd        string            `json:"cwd,omitempty" doc:"Working directory; empty: the workspace."`
	Mkdir      bool              `json:"mkdir,omitempty"`
	User       *spec.User        `json:"user,omitempty"`
	TTY        *WindowSize       `json:"tty,omitempty" doc:"Give it a terminal of this size."`
	History    Size              `json:"history,omitempty" doc:"Bytes of each output stream that are kept; 0: 1 MiB."`
	DropOldest bool              `json:"drop_oldest,omitempty" doc:"Drop output that nobody read instead of making the process wait."`
	DropStderr bool              `json:"drop_stderr,omitempty" doc:"Do so for stderr only: stdout makes the process wait."`
	Memory     Size              `json:"memory,omitempty" doc:"RAM in bytes that the process and what it starts may use, beside the limit of the session; 0: only that."`
	Labels     Labels            `json:"labels,omitempty" doc:"Labels of the process, beside those of its session."`
	Ready      *Ready            `json:"ready,omitempty" doc:"How to find out that it does its work; absent: it is ready as soon as its program runs."`
	Restart    string            `json:"restart,omitempty" doc:"on-failure, or on-failure:N: start it again when it fails, after a growing pause and at most N (5) times in a row. Absent or no: never."`
	Wait       bool              `json:"wait,omitempty" doc:"Answer when the process is ready, or not_ready when it has failed for good. Needs ready."`
	Session    *SessionSpec      `json:"session,omitempty" doc:"Make the session with this if it is not there."`
}

// Ready says how to find out that a process does its work.
type Ready = spec.Ready

// ProcessReady is the Ready of a process, with numbers.
type ProcessReady spec.Ready

// WindowSize of a terminal in characters.
type WindowSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Process is a managed process as it is now.
type Process struct {
	ID            string        `json:"id"`
	Session       string        `json:"session"`
	State         string        `json:"state" doc:"starting, running, exited, stopping, stopped, or failed: its probes gave it up, or its box was lost, so there is no exit code. With ready in place of running: starting, ready, or unready while its probes fail. restarting: it has failed, and is started again."`
	PID           int           `json:"pid,omitempty" doc:"Process id in the box."`
	Argv          []string      `json:"argv" nullable:"false"`
	TTY           bool          `json:"tty"`
	Box           string        `json:"box,omitempty" doc:"Id of the box it runs in."`
	History       Size          `json:"history" doc:"Bytes of each output stream that are kept."`
	DropOldest    bool          `json:"drop_oldest,omitempty"`
	DropStderr    bool          `json:"drop_stderr,omitempty"`
	Memory        Size          `json:"memory,omitempty" doc:"Its own limit in bytes; absent: only the session's limit."`
	Labels        Labels        `json:"labels,omitempty"`
	Ready         *ProcessReady `json:"ready,omitempty"`
	ReadyAt       *time.Time    `json:"ready_at,omitempty" doc:"When it was ready for the first time."`
	Restart       string        `json:"restart,omitempty"`
	Restarts      int           `json:"restarts,omitempty" doc:"How often it was restarted in a row."`
	RestartAt     *time.Time    `json:"restart_at,omitempty" doc:"When it is started again."`
	Failure       string        `json:"failure,omitempty" doc:"Why it has failed, or the run before; kept with ready or restart, until it is ready."`
	FailureOutput string        `json:"failure_output,omitempty" doc:"The end of what it had written then, up to 4 KiB: of stderr, or else of stdout."`
	Denied        []Denial      `json:"denied,omitempty" doc:"What boxd refused to the session while the process ran, or has refused since it started: the 20 most frequent. Others may have asked for it."`
	StartedAt     time.Time     `json:"started_at"`
	EndedAt       *time.Time    `json:"ended_at,omitempty"`
	ExitCode      *int          `json:"exit_code" nullable:"true" doc:"null while it runs, and if it did not exit by itself."`
	Signal        string        `json:"signal,omitempty"`
	Verdict       string        `json:"verdict,omitempty"`
	Limit         string        `json:"limit,omitempty"`
	Stdout        *Stream       `json:"stdout,omitempty"`
	Stderr        *Stream       `json:"stderr,omitempty"`
}

// Stream says which part of an output stream is kept.
type Stream struct {
	Oldest int64 `json:"oldest" doc:"Offset of the oldest byte that is kept."`
	End    int64 `json:"end" doc:"Offset behind the newest."`
}

// ProcessList is the managed processes of a session.
type ProcessList struct {
	Processes []Process `json:"processes" nullable:"false"`
}

// StopRequest stops a managed process: its stdin is closed, SIGTERM is sent, and after a
// grace period it is killed with its descendants.
type StopRequest struct {
	Grace *Duration `json:"grace,omitempty" doc:"Seconds between SIGTERM and the kill; absent: the server's."`
}

// SignalRequest sends a signal to a managed process.
type SignalRequest struct {
	Signal string `json:"signal" doc:"Name or number: SIGHUP, HUP or 1."`
}
