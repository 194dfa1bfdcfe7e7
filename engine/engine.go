package engine

import (
	"context"
	"syscall"
)

// Engine builds boxes.
type Engine interface {
	// Create builds a box and returns when commands can run in it. Nothing is
	// left behind on failure.
	Create(ctx context.Context, spec Spec) (Box, error)
	// Close ends the engine and every box it made, and waits for that.
	Close() error
}

// Box is a live box. It is safe for concurrent use.
type Box interface {
	// ID is the id of the spec, or the one that was drawn.
	ID() string
	// Start runs a command and returns once the program runs. Cancelling ctx
	// kills the command (verdict Canceled).
	Start(ctx context.Context, cmd Command) (Process, error)
	// Update changes limits and mounts of the running box: all of it or, on failure, at
	// most what is to be detached.
	Update(ctx context.Context, change Change) error
	// Done is closed when PID 1 of the box is gone.
	Done() <-chan struct{}
	// Remove kills everything in the box and takes it apart. Removing a removed
	// box is no error.
	Remove(ctx context.Context) error
}

// Process is a command that was started. Wait must be called exactly once.
type Process interface {
	// Wait returns when the command, its output and (unless they were to be
	// kept) its background processes have ended.
	Wait() (Result, error)
	// Signal sends sig to the command's first process; SIGINT and SIGQUIT, as a
	// terminal would, to its whole process group.
	Signal(sig syscall.Signal) error
	// Resize changes the size of its terminal.
	Resize(size WindowSize) error
}

// Run starts cmd in box and waits for it.
func Run(ctx context.Context, box Box, cmd Command) (Result, error) {
	p, err := box.Start(ctx, cmd)
	if err != nil {
		return Result{}, err
	}
	return p.Wait()
}
