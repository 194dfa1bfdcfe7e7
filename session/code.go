package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxd/boxd/engine"
)

// Code is source code in a language of the session's profile. It lies in a directory of its
// own in the box while it runs.
type Code struct {
	// Language is the name of the language; empty: the one whose files end as File does.
	Language string
	// File is the name of the file; empty: the language's.
	File string
	// Dir is the absolute path of the directory in the box, which does not exist yet.
	Dir string
	// Write makes Dir in the box, with the code in the file called name. It is called again
	// if the box is replaced before the program runs.
	Write func(ctx context.Context, box engine.LiveBox, name string) error
	// Remove removes Dir. It may be called after the answer.
	Remove func(box engine.LiveBox)
}

// removeCode removes the directory of code. The caller does not wait for it, unless the last one of
// the session is still being removed: a client that runs code in a loop must not outrun the
// removals.
func (s *session) removeCode(code *Code, box engine.LiveBox) {
	if !s.tidying.TryLock() {
		code.Remove(box)
		return
	}
	remove := func() {
		defer s.tidying.Unlock()
		code.Remove(box)
	}
	if !s.m.spawn(remove) {
		remove()
	}
}

// start starts the command of r in the box. Code is written before.
func (r *admittedExec) start(ctx context.Context, box engine.LiveBox, code *Code) (engine.Process, error) {
	if code == nil {
		return box.Start(ctx, r.cmd)
	}
	if err := code.Write(ctx, box, r.file); err != nil {
		if errors.Is(err, engine.ErrBoxLost) {
			// The program has not run, whatever of the code was written.
			return nil, engine.ErrBoxLost
		}
		return nil, fmt.Errorf("%w: %w", ErrCodeUnwritten, causeOf(ctx, err))
	}
	return box.Start(ctx, r.cmd)
}
