package engine

import "errors"

// Conditions that callers tell apart with errors.Is.
var (
	// ErrUnenforceable: this host cannot enforce a limit that was asked for.
	ErrUnenforceable = errors.New("limit cannot be enforced on this host")
	// ErrNotFound: the program does not exist in the box.
	ErrNotFound = errors.New("program not found")
	// ErrNotExecutable: the program exists but cannot be executed.
	ErrNotExecutable = errors.New("program not executable")
	// ErrAtLimit: a command cannot be started because of a limit of the box that is
	// reached: of memory, of processes or of terminals.
	ErrAtLimit = errors.New("limit of the box reached")
	// ErrNoDir: the working directory does not exist.
	ErrNoDir = errors.New("working directory does not exist")
	// ErrBoxLost: PID 1 of the box is gone.
	ErrBoxLost = errors.New("box is lost")
	// ErrMayHaveRun comes with ErrBoxLost: the box was lost after a command was handed
	// to it and before it said whether it runs. To start it again may be to do
	// something twice.
	ErrMayHaveRun = errors.New("the command may have run")
	// ErrNoLauncher: boxd-init is missing, of another version, or died.
	ErrNoLauncher = errors.New("launcher not available")
)

// DirError is a working directory that cannot be made or entered. Its text is that of Err.
type DirError struct{ Err error }

func (e *DirError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *DirError) Unwrap() error { return e.Err }
