package engine

import "context"

// Pausable is a box whose commands can stand still. Every LiveBox of this module is one, but gVisor boxes refuse. It is safe for
// concurrent use.
//
// While a box is paused, no instruction of a command or managed process runs, and memory and files stay as they
// are. PID 1 of boxd goes on: output that was written can be read, input is buffered, and limits can be changed.
// SIGKILL ends processes at once, other signals arrive after the pause. Start and Launch are refused with
// ErrPaused. Timeouts of commands stand still, and limits of processor time by themselves; a command that is
// cancelled does not wait for the end of the pause. Wall times of receipts include pauses.
//
// A pause outlives the caller and the launcher: an adopted box is paused as before.
type Pausable interface {
	// Pause returns when all commands have stopped. If one cannot stop within two seconds, because it waits in
	// the kernel, they all go on, and Pause fails. Pausing a paused box does nothing. Commands that are being
	// started come first. ErrUnenforceable: the isolation of the box does not allow it, see [Differences].
	Pause(ctx context.Context) error
	// Resume lets the commands go on. Resuming a box that is not paused does nothing.
	Resume(ctx context.Context) error
	// Paused reports whether the box is paused.
	Paused() bool
	// CanReclaim reports whether Reclaim can give memory of the box to the host. ErrUnenforceable: it cannot; the
	// text says why.
	CanReclaim(ctx context.Context) error
	// Reclaim gives memory of a paused box to the host: page cache, and what the host's swap has room for. It takes at
	// most some two seconds, ends early when the box is resumed, and returns by how many bytes the memory of the
	// box has shrunk. A box that is not paused keeps its memory. Its commands notice nothing but that they wait for
	// their memory when they use it again.
	//
	// This is the only way in which memory of a box with a memory limit gets into swap. It does not count to the
	// limit there, so until it has come back, the box may hold up to its limit in swap and up to its limit in RAM.
	// Processes with a memory limit of their own stay in RAM.
	Reclaim(ctx context.Context) (bytes int64, err error)
}
