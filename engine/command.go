package engine

import (
	"io"
	"syscall"
	"time"
)

// Command is one execution in a box.
type Command struct {
	// Args is the program and its arguments; never run through a shell.
	// A program without "/" is looked up in the PATH of Env.
	Args []string
	// Builtin runs a part of boxd itself in place of a program of the box, as the
	// command's user and within all of its limits; Args are then its arguments, and
	// Env must be empty. The one there is: [BuiltinFiles].
	Builtin string
	// Env is the environment as KEY=VALUE. PATH, HOME, USER, LANG and TMPDIR get
	// defaults when they are missing; nothing is inherited from the caller.
	Env []string
	// Dir is the working directory. Empty: the workspace if there is one, else
	// the home directory. A missing directory is ErrNoDir unless MakeDir is set.
	Dir     string
	MakeDir bool
	// User overrides the user of the box.
	User *User
	// Stdin is copied to the command; nil is /dev/null. Stdout and Stderr nil
	// mean discarded. Pipes, /dev/null and files that are open for reading only are
	// handed to the command as they are; everything else is copied. If Stdout and
	// Stderr are the same writer or file, they are one stream to the command, and
	// are limited and counted as Stdout.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY gives the command a pseudoterminal: Stdin and Stdout are its two
	// directions, Stderr must be nil. At the end of Stdin, which nil has at once, the
	// terminal's end-of-file character is typed, for as long as the command reads.
	TTY *WindowSize
	// Timeout ends the command: SIGTERM to its whole tree, Grace, then
	// everything is killed. 0 is none.
	Timeout time.Duration
	// Grace between SIGTERM and SIGKILL; 0 is DefaultGrace.
	Grace time.Duration
	// CancelGrace has a command whose context is cancelled end as at a timeout: SIGTERM
	// to its whole tree, and SIGKILL after that time. 0: it is killed at once.
	CancelGrace time.Duration
	// OutputLimit bounds Stdout and Stderr each, in bytes. The command that
	// writes more is killed. 0 is unlimited.
	OutputLimit int64
	// KeepBackground leaves processes running that outlive the command.
	KeepBackground bool
}

// BuiltinFiles reads and writes files of the box; package files knows its
// arguments and what it answers.
const BuiltinFiles = "files"

// DefaultGrace is the time between SIGTERM and SIGKILL at a timeout.
const DefaultGrace = 2 * time.Second

// WindowSize of a terminal in characters.
type WindowSize struct{ Rows, Cols uint16 }

// Verdict says why a command ended.
type Verdict string

// The verdicts. Exited and Signaled are the command's own doing.
const (
	Exited      Verdict = "exited"
	Signaled    Verdict = "signaled"
	TimedOut    Verdict = "timeout"
	OOM         Verdict = "oom"
	PIDsLimit   Verdict = "pids-limit"
	DiskQuota   Verdict = "disk-quota"
	OutputLimit Verdict = "output-limit"
	Canceled    Verdict = "canceled"
	BoxLost     Verdict = "box-lost"
)

// Result is how a command ended. All of it was measured.
type Result struct {
	Verdict Verdict
	// ExitCode is the exit status, 0 … 255, or -1 if the command did not exit
	// by itself.
	ExitCode int
	// Signal that ended the command, 0 if none did.
	Signal syscall.Signal
	// Limit describes the limit behind the verdict, such as "64 MiB", if one was.
	Limit   string
	Receipt Receipt
}

// Exit is the exit status if the command exited by itself, else nil: the form in which
// everything that leaves boxd as JSON has it.
func (r Result) Exit() *int {
	if r.ExitCode < 0 {
		return nil
	}
	return &r.ExitCode
}

// Status is the exit status as a shell reports it: the command's own, 128+n
// after signal n, 124 after a timeout, 137 for a box that was lost and for output
// beyond the limit, whether or not the command ended before it was killed.
func (r Result) Status() int {
	switch {
	case r.Verdict == TimedOut:
		return 124
	case r.Verdict == OutputLimit:
		return 128 + int(syscall.SIGKILL)
	case r.ExitCode >= 0:
		return r.ExitCode
	case r.Signal > 0:
		return 128 + int(r.Signal)
	}
	return 128 + int(syscall.SIGKILL)
}

// Receipt is what a command used, its descendants included. A nil figure could
// not be measured on this host; it is never guessed.
type Receipt struct {
	Wall             time.Duration
	User, System     *time.Duration
	MemoryPeak       *int64 // bytes, page cache included
	PIDsPeak         *int64
	StdoutBytes      *int64 // what the caller received; nil where boxd did not carry it
	StderrBytes      *int64
	Throttled        *time.Duration // time the CPU limit made it wait
	IOReadBytes      *int64
	IOWriteBytes     *int64
	OOMKills         *int64 // kills for memory in this command; on cgroup v2 each ends all of it
	PIDsLimitReached *int64 // forks that were refused
}
