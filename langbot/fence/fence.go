// Package fence keeps old generations of a workspace out: who has once seen a higher
// number never lets a lower one act again, also after a restart. It knows nothing of
// sessions; what has to go when a generation ends is told by a function.
package fence

import (
	"context"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/langbot/protocol"
)

// Fence is safe for concurrent use.
type Fence struct{}

// Open returns the fence that is kept in db. max is the most workspaces to know.
// advanced removes everything of c's workspace that is not of c's generation; it is run once per
// advance, before any action of the new generation, and again by the next action if it failed.
func Open(db *bbolt.DB, max func() int, advanced func(ctx context.Context, c protocol.Context) error) (*Fence, error) {
	return &Fence{}, nil
}

// Enter lets an action begin. The context that it returns is cancelled, with
// protocol.ErrStale as cause, when the generation advances. leave must be called.
func (f *Fence) Enter(ctx context.Context, c protocol.Context) (context.Context, func(), error) {
	return ctx, func() {}, nil
}

// Check fails if c is not of the current generation any more: to be called after an action.
func (f *Fence) Check(c protocol.Context) error { return nil }

// Current returns the generation of a workspace, if it is known.
func (f *Fence) Current(instance, workspace string) (int64, bool) { return 0, false }

// Advance makes c's generation the current one, as Enter does.
func (f *Fence) Advance(ctx context.Context, c protocol.Context) error { return nil }

// Watch returns a channel that is closed when the generation of c is not the
// current one (any more).
func (f *Fence) Watch(c protocol.Context) <-chan struct{} { return nil }
