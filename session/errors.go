package session

import (
	"errors"
	"fmt"
	"strings"

	"github.com/boxd/boxd/internal/diskroom"
)

// Conditions that callers distinguish with errors.Is. Errors of packages policy and engine
// are passed on.
var (
	// ErrNotFound: no such session or process.
	ErrNotFound = errors.New("not found")
	// ErrConflict: a live session differs from what was asked. See [ConflictError].
	ErrConflict = errors.New("conflicts with the live session")
	// ErrExists: a managed process with this ID is already running.
	ErrExists = errors.New("exists already")
	// ErrState: not possible in this state, for example because the session was removed
	// while it was being created.
	ErrState = errors.New("not possible in this state")
	// ErrNotReady: a process has failed before it was ready. See [NotReadyError].
	ErrNotReady = errors.New("not ready")
	// ErrClosed: the manager is closed or closing.
	ErrClosed = errors.New("sessions are closed")
	// ErrLocked: another daemon holds the state directory.
	ErrLocked = errors.New("state directory is in use")
	// ErrStorage: the state directory could not be written, for example because the disk
	// is full; nothing was changed.
	ErrStorage = errors.New("state directory cannot be written")
	// ErrCodeUnwritten: [Code.Write] failed, so the code was not run.
	ErrCodeUnwritten = errors.New("placing the code")
)

// storageError is an ErrStorage that says what could not be written, and where.
type storageError struct {
	what string
	dir  string // that may lack space; empty if err names it
	err  error
}

func (e *storageError) Error() string {
	text := e.what + ": " + e.err.Error()
	if e.dir != "" && diskroom.IsFull(e.err) {
		text += ": free space in " + e.dir
	}
	return text
}

func (e *storageError) Unwrap() error        { return e.err }
func (e *storageError) Is(target error) bool { return target == ErrStorage }

// ConflictError says in which fields a live session differs from what a caller asked for.
// It matches ErrConflict.
type ConflictError struct {
	Key    Key
	Fields []Conflict // sorted by Field
}

// Conflict is one field in which a session differs.
type Conflict struct {
	Field string // name in [policy.Request], such as "memory"
	Have  string
	Asked string
}

func (e *ConflictError) Error() string {
	parts := make([]string, len(e.Fields))
	change := "change"
	for i, f := range e.Fields {
		parts[i] = fmt.Sprintf("%s is %s, not %s", f.Field, f.Have, f.Asked)
		if f.Field == "network" || f.Field == "network_rules" {
			change = "change (boxd sessions set)"
		}
	}
	return fmt.Sprintf("session %q: %s: ask for what it has, or %s or remove the session first", e.Key.ID, strings.Join(parts, ", "), change)
}

// Is makes every ConflictError an ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }
