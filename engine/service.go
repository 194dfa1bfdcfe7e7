package engine

import (
	"context"
	"syscall"
	"time"
)

// Service is an engine whose boxes outlive the process that uses it. It is safe
// for concurrent use.
type Service interface {
	// Create builds a box, as [Engine.Create] does.
	Create(ctx context.Context, spec Spec) (LiveBox, error)
	// Adopt takes over a box that an earlier process made with spec; with a spec of
	// which only the ID, or nothing, is set, that which the engine kept is used. Commands
	// that the earlier process left running are killed, managed processes are not.
	// ErrBoxLost: there is no such box any more.
	Adopt(ctx context.Context, id string, spec Spec) (LiveBox, error)
	// Boxes lists the ids of all boxes that exist, adopted or not.
	Boxes(ctx context.Context) ([]string, error)
	// Discard removes a box that was not adopted, or what is left of one whose Remove
	// failed, for which it may be called again. An unknown one is no error.
	Discard(ctx context.Context, id string) error
	// Health is nil if a box could be made now, and says why not otherwise.
	Health(ctx context.Context) error
}

// LiveBox is a box of a Service.
type LiveBox interface {
	Box
	// Spec is what the box was made of, with the changes that were made to it since.
	Spec() Spec
	// Launch starts a managed process and returns once its program runs.
	Launch(ctx context.Context, m Managed) (ManagedProcess, error)
	// Managed lists the managed processes that have not been forgotten, running or
	// ended, those of earlier processes of the caller included.
	Managed() []ManagedProcess
	// Events tells of limits that commands ran into, as the kernel reports them. It
	// is closed when the box is gone. Events that nobody takes are merged, not lost.
	Events() <-chan Event
	// Usage is what the box uses at this moment.
	Usage() (Usage, error)
	// Ports lists the TCP and UDP ports that something in the box listens on.
	Ports() ([]Port, error)
}

// DefaultHistory is the size in bytes of each output ring of a managed process.
// Bounds: MinHistory, one page, and MaxHistory.
const (
	DefaultHistory = 1 << 20
	MinHistory     = 4 << 10
	MaxHistory     = 64 << 20
)

// Managed describes a managed process: one whose stdio is kept in the box, so that
// it outlives the process that started it.
type Managed struct {
	// Key names the process in its box, once in the box's life: 1 to 64 of a-z, 0-9
	// and "-".
	Key string
	// Args, Env, Dir, MakeDir, User and TTY are those of a Command. With TTY there
	// is one output, the terminal's.
	Args    []string
	Env     []string
	Dir     string
	MakeDir bool
	User    *User
	TTY     *WindowSize
	// History is the size of each output ring in bytes, rounded up to a power of
	// two; 0 is DefaultHistory. All rings of a box have 192 MiB together, beside its
	// memory limit.
	History int64
	// StderrHistory is that of the ring of stderr alone; 0 is History.
	StderrHistory int64
	// Memory is a limit in bytes for this process and its descendants, beside that of
	// the box, which counts them too; 0 is none. MinMemory is the least. With
	// ErrUnenforceable nothing was started.
	Memory int64
	// DropOldest overwrites output that nobody has released when a ring is full.
	// Without it the process waits until there is room.
	DropOldest bool
	// DropStderr is DropOldest for the standard error output only: the process never
	// waits for somebody to read that, but it does for a reader of its standard output.
	// A terminal's one output is not meant.
	DropStderr bool
}

// ManagedProcess is a managed process that was started. It is safe for concurrent
// use, and stays usable after its end until Forget.
type ManagedProcess interface {
	Key() string
	// Stdio returns the three streams; Stderr is nil with a terminal.
	Stdio() Stdio
	// Control acts on the process while it runs.
	Control() ProcessControl
	// Hold keeps what the process has written readable until the caller calls release, even if
	// it ends meanwhile and is forgotten, or its box is lost and removed.
	Hold() (release func())
	// Done is closed when the process has ended, all of its output is in the rings
	// and the result is known; or its box is lost. Descendants that hold its output
	// delay that by 2 s at most. It is not closed by a Service that lets go of the box.
	Done() <-chan struct{}
	// Result is how it ended, after Done. A box that was lost gives BoxLost and no
	// exit code: it is never invented.
	Result() Result
	// Forget gives back rings and cgroup of a process that has ended. What is left
	// of its descendants is killed.
	Forget(ctx context.Context) error
}

// ProcessControl acts on a running managed process.
type ProcessControl interface {
	// PID is the process id in the box.
	PID() int
	// Signal sends sig as [Process.Signal] does.
	Signal(sig syscall.Signal) error
	// Resize changes the size of its terminal; an error without one.
	Resize(size WindowSize) error
	// Kill ends the process with all its descendants, through its cgroup.
	Kill(ctx context.Context) error
	// Terminate sends sig to the process and all its descendants.
	Terminate(ctx context.Context, sig syscall.Signal) error
}

// Stdio is the streams of a managed process.
type Stdio struct {
	Stdin          Input
	Stdout, Stderr Output
}

// Output is one output stream, of which the last part is kept in a ring. Offsets
// count bytes from the start of the process and only grow.
type Output interface {
	// Bounds are the offset of the oldest byte that is kept and that behind the
	// newest.
	Bounds() (oldest, end int64)
	// ReadAt reads from off on, waiting until there is at least one byte, the stream
	// has ended (io.EOF), or ctx ends. at is the offset of the first byte read: it
	// is above off if bytes in between are gone.
	ReadAt(ctx context.Context, p []byte, off int64) (n int, at int64, err error)
	// Release says that bytes below off need not be kept for anybody: the process
	// may overwrite them. Without a Release a full ring makes it wait, unless it was
	// started with DropOldest.
	Release(off int64)
	// Released is how far Release has come, never beyond end: where a reader goes on
	// that another process was before. What was released within the last 10 ms may be
	// missing there if that process was killed.
	Released() int64
}

// TimedOutput is an Output that knows when its bytes came.
type TimedOutput interface {
	Output
	// Times are marks with growing offsets and times. A mark is for the bytes from its
	// offset to that of the next. The newest are exact to a millisecond; the older they
	// are, the more bytes share one.
	Times() []OutputTime
}

// OutputTime says when the byte at Offset came.
type OutputTime struct {
	Offset int64
	Time   time.Time
}

// Input is the input stream. Offsets count bytes from the start of the process, so
// what is sent again after a lost connection is taken once.
type Input interface {
	// Write hands over p, whose first byte has offset off, and waits until all of it
	// is the process's. Bytes below Accepted are skipped; a gap is an error.
	// syscall.EPIPE: the process does not read any more.
	Write(ctx context.Context, off int64, p []byte) error
	// Accepted is the offset behind the last byte that was taken: by the process, or
	// by what keeps it for the process whoever comes and goes. After a Write that was
	// given up, too, it moves no more.
	Accepted() int64
	// Close ends the stream behind what was accepted. A terminal gets its end-of-file
	// character.
	Close(ctx context.Context) error
}

// EventKind says which limit an Event is about.
type EventKind string

// The kinds of events.
const (
	EventOOM  EventKind = "oom"  // something was killed for memory
	EventPIDs EventKind = "pids" // a fork was refused
)

// Event is a limit that the commands of a box ran into.
type Event struct {
	Kind  EventKind
	Count int64 // how often since the box was made
}

// Usage is what a box uses. A nil figure cannot be measured on this host.
type Usage struct {
	Memory    *int64         // bytes, page cache included
	PIDs      *int64         // processes and threads
	CPU       *time.Duration // since the box was made
	Throttled *time.Duration // time the CPU limit made it wait
	// Written is how many bytes its live processes, and those that these have waited
	// for, have caused to be written to disks, less what they truncated before that. Blocks
	// reserved with fallocate(2) and files in memory do not count. It can fall.
	Written *int64
}

// Port is something that listens in a box.
type Port struct {
	Protocol string // "tcp", "tcp6", "udp" or "udp6"
	Address  string // the address it is bound to, without the port
	Port     int
}
