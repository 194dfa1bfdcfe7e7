package apitypes

import (
	"time"

	"github.com/boxd/boxd/engine"
)

// ProcessRequest starts a managed process.
type ProcessRequest struct {
	ID         string            `json:"id" doc:"Id of the process, once in its session."`
	Argv       []string          `json:"argv,omitempty" doc:"Program and arguments. Either this or shell."`
	Shell      string            `json:"shell,omitempty" doc:"A line for /bin/sh -c."`
	Env        map[string]string `json:"env,omitempty"`
	Cwd        string            `json:"cwd,omitempty" doc:"Working directory; empty: the workspace."`
	Mkdir      bool              `json:"mkdir,omitempty"`
	User       *engine.User      `json:"user,omitempty"`
	TTY        *WindowSize       `json:"tty,omitempty" doc:"Give it a terminal of this size."`
	History    Size              `json:"history,omitempty" doc:"Bytes of each output stream that are kept; 0: 1 MiB."`
	DropOldest bool              `json:"drop_oldest,omitempty" doc:"Drop output that nobody read instead of making the process wait."`
	DropStderr bool              `json:"drop_stderr,omitempty" doc:"Do so for stderr only: stdout makes the process wait."`
	Memory     Size              `json:"memory,omitempty" doc:"RAM in bytes that the process and what it starts may use, beside the limit of the session; 0: only that."`
	Labels     Labels            `json:"labels,omitempty" doc:"Labels of the process, beside those of its session."`
	Session    *SessionSpec      `json:"session,omitempty" doc:"Make the session with this if it is not there."`
}

// WindowSize of a terminal in characters.
type WindowSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Process is a managed process as it is now.
type Process struct {
	ID         string     `json:"id"`
	Session    string     `json:"session"`
	State      string     `json:"state" doc:"starting, running, exited, stopping, stopped, or failed: its box was lost, so there is no exit code."`
	PID        int        `json:"pid,omitempty" doc:"Process id in the box."`
	Argv       []string   `json:"argv" nullable:"false"`
	TTY        bool       `json:"tty"`
	Box        string     `json:"box,omitempty" doc:"Id of the box it runs in."`
	History    Size       `json:"history" doc:"Bytes of each output stream that are kept."`
	DropOldest bool       `json:"drop_oldest,omitempty"`
	DropStderr bool       `json:"drop_stderr,omitempty"`
	Memory     Size       `json:"memory,omitempty" doc:"Its own limit in bytes; absent: only that of the session."`
	Labels     Labels     `json:"labels,omitempty"`
	StartedAt  time.Time  `json:"started_at"`
	EndedAt    *time.Time `json:"ended_at,omitempty"`
	ExitCode   *int       `json:"exit_code" nullable:"true" doc:"null while it runs, and if it did not exit by itself."`
	Signal     string     `json:"signal,omitempty"`
	Verdict    string     `json:"verdict,omitempty"`
	Limit      string     `json:"limit,omitempty"`
	Stdout     *Stream    `json:"stdout,omitempty"`
	Stderr     *Stream    `json:"stderr,omitempty"`
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
