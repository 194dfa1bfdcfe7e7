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
}
