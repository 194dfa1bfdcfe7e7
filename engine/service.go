package engine

import (
	"context"
	"syscall"
	"time"
)

// Service builds boxes that outlive the process that uses it; see the package comment for
// the difference from an [Engine]. It is safe for concurrent use.
type Service interface {
	// Create builds a box, as [Engine].Create does. The box stays when the caller ends.
	Create(ctx context.Context, spec Spec) (LiveBox, error)
	// Adopt takes over a box that an earlier process created. Commands that the earlier
	// process left running are killed; managed processes keep running.
	//
	// spec is the caller's own record of the box. An engine that keeps a record itself
	// uses that one and ignores spec, so a caller without a record passes a zero Spec.
	//
	// ErrBoxLost: the box no longer exists.
	Adopt(ctx context.Context, id string, spec Spec) (LiveBox, error)
	// Boxes lists the IDs of all boxes that exist, adopted or not.
	Boxes(ctx context.Context) ([]string, error)
	// Discard removes a box without adopting it, or what is left of a box whose Remove
	// failed. After a failure it may be called again. Discarding an unknown box does nothing.
	Discard(ctx context.Context, id string) error
	// Health returns nil if a box could be built now, and otherwise the reason.
	Health(ctx context.Context) error
}

// LiveBox is a box of a [Service]: a [Box] with managed processes, events and figures.
type LiveBox interface {
	Box
	// Spec returns the Spec that the box was created with, including later changes.
	Spec() Spec
	// Launch starts a managed process and returns once its program runs.
	//
	// Errors are those of Start, and ErrUnenforceable for Managed.Memory.
	Launch(ctx context.Context, m Managed) (ManagedProcess, error)
	// Managed lists the managed processes, running or ended, that were not forgotten. It
	// includes those that an earlier client of the Service launched.
	Managed() []ManagedProcess
	// Events delivers the limits that commands run into, as the kernel reports them. The
	// channel is closed when the box is gone. If the receiver is slow, events of one
	// kind are merged; the counts stay right.
	Events() <-chan Event
	// Usage returns what the box uses at this moment.
	Usage() (Usage, error)
	// Ports lists the TCP and UDP ports that processes of the box listen on.
	Ports() ([]Port, error)
}

// Sizes in bytes of the buffer in which each output stream of a managed process is kept.
const (
	DefaultHistory = 1 << 20
	MinHistory     = 4 << 10 // one page
	MaxHistory     = 64 << 20
)

// Managed describes a managed process: its stdio is kept in the box, so that it can keep
// running when the process that started it ends.
type Managed struct {
	// Key names the process within its box: 1 to 64 of a-z, 0-9 and "-". A box accepts
	// each key once, even after the process was forgotten.
	Key string
	// Args, Env, Dir, MakeDir, User and TTY mean the same as in a Command. A terminal
	// has a single output, Stdout.
	Args    []string
	Env     []string
	Dir     string
	MakeDir bool
	User    *User
	TTY     *WindowSize
	// History is the size in bytes of the ring buffer for each output stream, rounded
	// up to a power of two; 0 means DefaultHistory. The buffers of all processes of a
	// box take 192 MiB at most, in addition to the box's memory limit.
	History int64
	// StderrHistory is the size of the buffer for stderr; 0 means History.
	StderrHistory int64
	// Memory limits this process and its descendants, in bytes, in addition to the
	// box's limit, which counts them too. 0 means none; the minimum is MinMemory of
	// package engine/spec. On ErrUnenforceable nothing was started.
	Memory int64
	// DropOldest overwrites the oldest output when a buffer is full. Without it the
	// process waits until a reader releases some.
	DropOldest bool
	// DropStderr is DropOldest for stderr only: the process waits for a reader of stdout,
	// but never for one of stderr. It has no effect with TTY.
	DropStderr bool
}

// ManagedProcess is a managed process that was started. It is safe for concurrent use,
// and remains usable after the process has ended, until Forget.
type ManagedProcess interface {
	// Key returns the name under which the process was launched.
	Key() string
	// Stdio returns the three streams; Stderr is nil with a terminal.
	Stdio() Stdio
	// Control returns the interface to signal, resize and kill the process.
	Control() ProcessControl
	// Hold keeps the output readable until release is called, even if the process is
	// forgotten, or its box lost and removed, in the meantime.
	Hold() (release func())
	// Done is closed when the result is known: the process has ended and all of its
	// output is in the buffers, or its box is lost. If descendants keep the output open,
	// it is closed 2 s after the process's end at the latest. It stays open when the
	// Service merely disconnects.
	Done() <-chan struct{}
	// Result returns how the process ended. Call it after Done. If the box was lost, the
	// verdict is BoxLost and there is no exit status.
	Result() Result
	// Forget frees the buffers and the cgroup of a process that has ended, and kills
	// descendants that are left.
	Forget(ctx context.Context) error
}

// ProcessControl acts on a running managed process.
type ProcessControl interface {
	// PID returns the process ID inside the box.
	PID() int
	// Signal sends sig as [Process].Signal does.
	Signal(sig syscall.Signal) error
	// Resize changes the size of the terminal. It fails if there is none.
	Resize(size WindowSize) error
	// Kill kills the process and all its descendants, through their cgroup.
	Kill(ctx context.Context) error
	// Terminate sends sig to the process and all its descendants.
	Terminate(ctx context.Context, sig syscall.Signal) error
}

// Stdio holds the streams of a managed process.
type Stdio struct {
	Stdin          Input
	Stdout, Stderr Output
}

// Output is an output stream, whose latest part is kept in a ring buffer. An offset
// counts bytes from the start of the process, so it identifies a byte for good. Any
// number of readers may read at their own offsets.
type Output interface {
	// Bounds returns the offset of the oldest byte kept, and the offset after the newest.
	Bounds() (oldest, end int64)
	// ReadAt reads into p, starting at off. It waits until there is at least one byte,
	// the stream has ended (io.EOF), or ctx ends. at is the offset of the first byte
	// read; it is above off if the bytes in between are no longer kept.
	ReadAt(ctx context.Context, p []byte, off int64) (n int, at int64, err error)
	// Release allows the process to overwrite the bytes below off. A process that was
	// launched without DropOldest waits when its buffer is full of unreleased output.
	Release(off int64)
	// Released returns the highest offset that was released, at most end. A reader
	// continues there if an earlier client of the Service read the output before. If that
	// client was killed, its releases of the last 10 ms may be missing.
	Released() int64
}

// TimedOutput is an Output that knows when its bytes arrived.
type TimedOutput interface {
	Output
	// Times returns marks in ascending order. A mark holds for the bytes from its offset
	// up to the next mark. The newest marks are exact to a millisecond; older ones cover
	// more bytes each.
	Times() []OutputTime
}

// OutputTime is the time at which the byte at Offset arrived.
type OutputTime struct {
	Offset int64
	Time   time.Time
}

// Input is the input stream. An offset counts bytes from the start of the process, so
// bytes that are sent again after a lost connection are accepted only once.
type Input interface {
	// Write sends p, whose first byte has the offset off, and waits until all of it is
	// accepted. Bytes below Accepted are skipped; an off above Accepted is an error.
	// syscall.EPIPE: the process no longer reads.
	Write(ctx context.Context, off int64, p []byte) error
	// Accepted returns the offset after the last byte that was accepted by the process,
	// or by its in-box buffer, which survives client restarts. After a Write has returned,
	// even with an error, Accepted no longer advances because of it.
	Accepted() int64
	// Close ends the stream after the accepted bytes. A terminal gets its end-of-file
	// character.
	Close(ctx context.Context) error
}

// EventKind says which limit an [Event] is about.
type EventKind string

// The kinds of events.
const (
	EventOOM  EventKind = "oom"  // the kernel killed a process for lack of memory
	EventPIDs EventKind = "pids" // the kernel refused a fork
)

// Event reports that commands of a box ran into a limit.
type Event struct {
	Kind  EventKind
	Count int64 // how often since the box was created
}

// Usage is what a box uses at one moment. A figure that this host cannot measure is nil.
type Usage struct {
	Memory    *int64         // bytes, page cache included
	PIDs      *int64         // processes and threads
	CPU       *time.Duration // since the box was created
	Throttled *time.Duration // waiting time caused by the CPU limit
	// Written is the number of bytes that the box's live processes, and the children that
	// they have waited for, caused to be written to disks, minus what was truncated before
	// it was written. Blocks reserved with fallocate(2) and files in memory do not count.
	// The figure can fall.
	Written *int64
}

// Port is a port that a process of a box listens on.
type Port struct {
	Protocol string // "tcp", "tcp6", "udp" or "udp6"
	Address  string // the address it is bound to, without the port
	Port     int
}
