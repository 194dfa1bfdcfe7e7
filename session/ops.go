package session

import (
	"context"
	"io"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/headtail"
)

// Exec is one command.
type Exec struct {
	// Args are the command and its arguments; none: the default command of the image.
	Args []string
	// Code, if not nil, is what to run: Args follow the command of its language.
	Code *Code
	// Env is added to the session's environment and overrides it, as KEY=VALUE.
	Env     []string
	Dir     string
	MakeDir bool
	User    *engine.User
	// Stdin is copied to the command; nil is /dev/null.
	Stdin io.Reader
	// Stdout and Stderr receive the output while the command runs; nil: the result has it.
	Stdout, Stderr io.Writer
	TTY            *engine.WindowSize
	// Timeout; 0 is the default of the session. It is cut to the cap of the profile.
	Timeout time.Duration
	Grace   time.Duration // between SIGTERM and SIGKILL; 0 is engine.DefaultGrace
	// CancelGrace is the time between SIGTERM and SIGKILL when ctx ends; 0: SIGKILL at
	// once.
	CancelGrace time.Duration
	// OutputLimit is the limit of each stream in bytes. 0, and any value above the
	// manager's limit, means the manager's.
	OutputLimit int64
	// NoOutputLimit removes the manager's limit, for a caller whose own Stdout and Stderr bound what
	// is kept. OutputLimit counts as it is then, and 0 is none.
	NoOutputLimit bool
	// Unseen: the output does not pass through this process, so the history keeps none of it.
	Unseen   bool
	admitted bool // it counts in the rates already
	// noTimeout: a Timeout of 0 means none.
	noTimeout bool
	// KeepBackground leaves processes running that outlive the command.
	KeepBackground bool
	// Zygote names the warm interpreter of the box that takes the command over; empty: one that
	// matches Args, or none.
	Zygote string
	// Started, if not nil, is called once when the program runs, with its handle for
	// signals and window sizes; it must not call Wait.
	Started func(engine.Process)
	// Interrupt, if not nil, is called when the command is canceled, by whomever: ctx has ended, or the session is
	// being removed. A Write to Stdout or Stderr that waits for a reader must return then, or Exec does not.
	Interrupt func()
	// Ended, if not nil, is called when the command has ended, with the result and the
	// timeout that applied, before the end is recorded. Exec may still fail after that.
	Ended func(ExecResult)
	// Collect, if not nil, is called after Ended, unless the box was lost, with the box for
	// operations on files. The command still counts as running, and its session as used.
	Collect func(context.Context, engine.LiveBox)
}

// ExecResult is how a command ended.
type ExecResult struct {
	engine.Result
	// Stdout and Stderr are what was captured. StdoutMissing and StderrMissing are the gaps of
	// streams over Options.CaptureLimit, nil if nothing is missing.
	Stdout, Stderr               []byte
	StdoutMissing, StderrMissing *headtail.Missing
	// Timeout is the one that counted.
	Timeout time.Duration
	// Denied is what boxd refused to the session while the command ran; other commands may have
	// asked for it.
	Denied []Denial
	// Session is the session in which the command ran, afterwards. Created and Recreated
	// say what this call did to it.
	Session View
}

// ProcessSettings are the settings of a managed process that are kept with it and shown in
// its views.
type ProcessSettings struct {
	// History is the size of each output ring in bytes; 0 is Options.History.
	History int64 `json:"history,omitempty"`
	// DropOldest overwrites the oldest output when a ring is full; otherwise the process
	// waits for a reader.
	DropOldest bool `json:"drop_oldest,omitempty"`
	// DropStderr is DropOldest for stderr only: stdout waits for a reader.
	DropStderr bool `json:"drop_stderr,omitempty"`
	// Memory bounds, in bytes, what this process and its descendants use, in addition to
	// the limit of the session; 0: only that limit applies.
	Memory int64 `json:"memory,omitempty"`
	// Labels of the process, beside those of its session. They must not be changed.
	Labels spec.Labels `json:"labels,omitempty"`
	// Ready says when the process is ready; nil: once it runs. It must not be changed.
	Ready *spec.Ready `json:"ready,omitempty"`
	// Restart says when the process is started again, see [spec.ParseRestart].
	Restart string `json:"restart,omitempty"`
}

// ProcessSpec describes a managed process to start.
type ProcessSpec struct {
	// ID names the process in its session. The ID of an ended process can be used again.
	ID      string
	Args    []string // none: the default command of the image
	Env     []string // added to the session's
	Dir     string
	MakeDir bool
	User    *engine.User
	TTY     *engine.WindowSize
	ProcessSettings
	// StderrHistory is the size of the ring of stderr; 0 means History.
	StderrHistory int64
}

// StopOptions say how to stop a managed process.
type StopOptions struct {
	// Grace is the time between SIGTERM and SIGKILL; 0 means the manager's.
	Grace time.Duration
}
