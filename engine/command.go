package engine

import (
	"io"
	"syscall"
	"time"
)

// Command describes one execution in a box. Only Args is required.
type Command struct {
	// Args holds the program and its arguments. No shell is involved. A program without
	// "/" is looked up in the PATH of Env.
	Args []string
	// Builtin selects a helper of boxd that runs instead of a program of the box, as the
	// command's user and within its limits. Args are then the helper's arguments, and Env
	// must be empty.
	Builtin string
	// Zygote is the name of a zygote of the box, see [Spec].Zygotes, that takes the command
	// over if it can. Args must begin with its command. Empty: a zygote that matches Args, if the
	// box has one. A box without a zygote of that name refuses the command.
	Zygote string
	// Env is the environment as KEY=VALUE. Missing PATH, HOME, USER, LANG and TMPDIR get
	// defaults. Nothing is inherited from the caller.
	Env []string
	// Dir is the working directory. Empty means the workspace if the box has one, and
	// otherwise the home directory. If the directory does not exist, MakeDir creates it;
	// without MakeDir that is ErrNoDir.
	Dir     string
	MakeDir bool
	// User replaces the user of the box.
	User *User
	// Stdin nil means /dev/null; Stdout and Stderr nil mean that the output is discarded.
	// A pipe, /dev/null, or a file opened for reading only is passed to the command itself;
	// data of all other readers and writers is copied. If Stdout and Stderr are the same
	// writer or file, the command gets one stream, which is limited and counted as Stdout.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY gives the command a pseudoterminal of this size. Stdin and Stdout are then its
	// two directions, and Stderr must be nil. After the end of Stdin, or at once if Stdin is
	// nil, the terminal's end-of-file character is sent whenever the command reads.
	TTY *WindowSize
	// Timeout limits the run time; 0 means none. When it expires, SIGTERM is sent to the
	// command and all its descendants, and SIGKILL after Grace.
	Timeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL; 0 means DefaultGrace.
	Grace time.Duration
	// CancelGrace is the time between SIGTERM and SIGKILL when the context of Start is
	// cancelled. 0 means SIGKILL at once. If the context is cancelled during Start, the same
	// time bounds the rest of Start, because the program may run already.
	CancelGrace time.Duration
	// OutputLimit is the maximum number of bytes on Stdout and on Stderr, each. A command
	// that writes more is killed. 0 means no limit.
	OutputLimit int64
	// KeepBackground leaves descendants running that outlive the command's first
	// process. Without it they are killed.
	KeepBackground bool
}

// The helpers of boxd.
const (
	// BuiltinFiles performs the operations of package files.
	BuiltinFiles = "files"
	// BuiltinDial connects to the TCP port of the box's loopback that is its argument, sends
	// its stdin there, and writes to stdout what it receives. If it cannot connect, it says
	// why on stderr and exits with 1.
	BuiltinDial = "dial"
	// BuiltinUnpack decompresses and writes layers of images, see agent/unpack/proto.
	BuiltinUnpack = "unpack"
)

// DefaultGrace is the default time between SIGTERM and SIGKILL after a timeout.
const DefaultGrace = 2 * time.Second

// WindowSize is the size of a terminal in characters.
type WindowSize struct{ Rows, Cols uint16 }

// Verdict says why a command ended.
type Verdict string

// The verdicts. With the first two the command ended by itself, whether it succeeded or
// not; with the others boxd, the kernel or the caller intervened.
const (
	Exited      Verdict = "exited"       // it exited, with any status
	Signaled    Verdict = "signaled"     // a signal killed it, and no limit was the reason
	TimedOut    Verdict = "timeout"      // Command.Timeout expired
	OOM         Verdict = "oom"          // it failed after one of its processes was killed for lack of memory
	PIDsLimit   Verdict = "pids-limit"   // it failed after a fork was refused
	DiskQuota   Verdict = "disk-quota"   // it failed because a volume was full or a file too large
	OutputLimit Verdict = "output-limit" // it wrote more than Command.OutputLimit
	Canceled    Verdict = "canceled"     // the context of Start was cancelled
	BoxLost     Verdict = "box-lost"     // the box ended while the command ran
)

// Result is how a command ended.
type Result struct {
	Verdict Verdict
	// ExitCode is the exit status, 0 to 255, or -1 if the command did not exit by itself.
	ExitCode int
	// Signal is the signal that ended the command, or 0.
	Signal syscall.Signal
	// Limit describes the limit behind the verdict for people, such as "64 MiB"; empty
	// if there is none.
	Limit string
	// Warm says that a spare of a zygote took the command over.
	Warm    bool
	Receipt Receipt
}

// Exit returns the exit status, or nil if the command did not exit by itself. JSON
// answers of boxd contain it in this form.
func (r Result) Exit() *int {
	if r.ExitCode < 0 {
		return nil
	}
	return &r.ExitCode
}

// Status returns the exit status as a shell would report it: the command's own, 128+n
// after signal n, 124 after a timeout, and 137 if the box was lost or the output limit
// was exceeded, even if the command exited before it could be killed.
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

// Receipt is what a command and all its descendants used. A figure that this host cannot
// measure is nil; it is never an estimate.
type Receipt struct {
	Wall time.Duration // from the start to the end of the command
	// Processor time. The sum is exact to some microseconds. The kernel samples at clock ticks which of the
	// two it is, so each of a command below 10 ms may be all of the sum, and of longer ones off by 50 ms.
	User, System *time.Duration
	// Bytes, page cache included. The kernel charges 64 pages at a time on each processor, so it may be that
	// much above what the command used, and on cgroup v1 by up to 512 KiB more.
	MemoryPeak       *int64
	PIDsPeak         *int64 // processes and threads at once
	StdoutBytes      *int64 // bytes that the caller received; nil if the command wrote to the caller's file or pipe itself
	StderrBytes      *int64
	Throttled        *time.Duration // waiting time caused by the CPU limit
	IOReadBytes      *int64
	IOWriteBytes     *int64
	OOMKills         *int64 // kills for lack of memory; on cgroup v2 each one ends the whole command
	PIDsLimitReached *int64 // forks that were refused
}
