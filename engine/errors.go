package engine

import "errors"

// Conditions to test for with errors.Is; [ErrInvalid] is another.
var (
	// ErrUnenforceable: this host cannot enforce a requested limit. The text says why.
	ErrUnenforceable = errors.New("limit cannot be enforced on this host")
	// ErrNotFound: the program does not exist in the box.
	ErrNotFound = errors.New("program not found")
	// ErrNotExecutable: the program exists but cannot be executed.
	ErrNotExecutable = errors.New("program not executable")
	// ErrAtLimit: the command cannot start because the box has reached its limit of
	// memory, processes or terminals.
	ErrAtLimit = errors.New("limit of the box reached")
	// ErrNoDir: the working directory does not exist.
	ErrNoDir = errors.New("working directory does not exist")
	// ErrBoxLost: the box no longer exists, because its PID 1 has ended.
	ErrBoxLost = errors.New("box is lost")
	// ErrMayHaveRun accompanies ErrBoxLost if the box was lost while it was starting the
	// command. It is then unknown whether the command ran, and a retry may run it twice.
	ErrMayHaveRun = errors.New("the command may have run")
	// ErrPaused: no command starts in a box that is paused, see [Pausable].
	ErrPaused = errors.New("box is paused")
	// ErrNoLayer: a layer does not exist. The text says which.
	ErrNoLayer = errors.New("layer does not exist")
	// ErrLayerInUse: a box uses the layer.
	ErrLayerInUse = errors.New("layer is in use")
	// ErrNoEngine: the engine or the isolation that a Spec asks for cannot build boxes on this
	// host now. The text says why. Another engine may work.
	ErrNoEngine = errors.New("engine not available")
	// ErrNoLauncher: boxd-init is missing, has another version, or has died.
	ErrNoLauncher = errors.New("launcher not available")
)

// DirError says that a working directory cannot be created or entered. Its text is that of
// Err.
type DirError struct{ Err error }

func (e *DirError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *DirError) Unwrap() error { return e.Err }
