package engine

import (
	"context"
	"syscall"
)

// Engine builds boxes that live no longer than the process that holds it; see the package
// comment for the difference from a [Service]. It is safe for concurrent use.
type Engine interface {
	// Create builds a box and returns when commands can run in it. On failure nothing
	// is left behind. The caller owns the box and removes it.
	//
	// Errors: ErrInvalid; ErrUnenforceable, unless spec.AllowDegraded; ErrNoLauncher.
	Create(ctx context.Context, spec Spec) (Box, error)
	// Close removes every box that still exists, ends the engine, and waits for both.
	Close() error
}

// Box is a running box. It is safe for concurrent use.
type Box interface {
	// ID returns the ID of the Spec, or a random one if that was empty.
	ID() string
	// Start starts a command and returns once its program runs. The caller must call
	// Wait on the Process. ctx covers the command's whole life: cancelling it kills the
	// command (verdict Canceled, see also Command.CancelGrace).
	//
	// Errors: ErrInvalid, ErrNotFound, ErrNotExecutable, ErrNoDir, ErrAtLimit; ErrBoxLost,
	// together with ErrMayHaveRun if the command may have run.
	Start(ctx context.Context, cmd Command) (Process, error)
	// Update changes limits and mounts of the box while its commands run. If it fails,
	// nothing was changed, except that some mounts may already have been detached.
	Update(ctx context.Context, change Change) error
	// Done is closed when the box's PID 1 has ended: after Remove, or because the box
	// was lost.
	Done() <-chan struct{}
	// Remove kills everything in the box and removes it. Removing it again does
	// nothing. If ctx ends first, Remove returns and the removal continues.
	Remove(ctx context.Context) error
}

// Process is a command that was started. Wait must be called exactly once; Signal and
// Resize may be called meanwhile, from other goroutines.
type Process interface {
	// Wait waits until the command has ended, its output has been copied, and, unless
	// Command.KeepBackground is set, its background processes are gone.
	//
	// An error does not say how the command ended. It means that a reader or writer of the
	// caller failed, or that boxd could not measure or clean up something.
	Wait() (Result, error)
	// Signal sends sig to the command's first process; SIGINT and SIGQUIT go to its
	// whole process group, as from a terminal.
	Signal(sig syscall.Signal) error
	// Resize changes the size of the command's terminal.
	Resize(size WindowSize) error
}

// Run starts cmd in box and waits for its end. It is short for Start and Wait.
func Run(ctx context.Context, box Box, cmd Command) (Result, error) {
	p, err := box.Start(ctx, cmd)
	if err != nil {
		return Result{}, err
	}
	return p.Wait()
}
