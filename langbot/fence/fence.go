// Package fence keeps old generations of a workspace out: who has once seen a higher
// number never lets a lower one act again, also after a restart. It knows nothing of
// sessions; what has to go when a generation ends is told by a function.
package fence

import (
	"context"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/langbot/protocol"
)

// Fence is safe for concurrent use.
type Fence struct {
	db       *bbolt.DB
	max      func() int
	advanced func(context.Context, protocol.Context) error

	mu      sync.Mutex
	entries map[key]*entry
}

// entry is one workspace.
type entry struct {
	generation int64 // 0: not yet known
	// dirty says that what older generations left behind may still be there.
	dirty bool
	// busy is closed and nil again when the one who advances this entry is done.
	busy    chan struct{}
	running map[*action]struct{}
	changed chan struct{} // closed and replaced with each advance; nil: nobody watches
}

// action is one that has entered.
type action struct{ cancel context.CancelCauseFunc }

// Open returns the fence that is kept in db. max is the most workspaces to know.
// advanced removes everything of c's workspace that is not of c's generation; it is run once per
// advance, before any action of the new generation, and again by the next action if it failed or the
// process died meanwhile. It goes on when the action that it is run for is cancelled.
func Open(db *bbolt.DB, max func() int, advanced func(ctx context.Context, c protocol.Context) error) (*Fence, error) {
	entries, err := load(db)
	if err != nil {
		return nil, err
	}
	return &Fence{db: db, max: max, advanced: advanced, entries: entries}, nil
}

// Enter lets an action of c begin, and makes c's generation the current one if it is
// higher. The context that it returns is cancelled, with protocol.ErrStale as cause,
// when the generation advances. leave must be called at the end of the action.
func (f *Fence) Enter(ctx context.Context, c protocol.Context) (_ context.Context, leave func(), _ error) {
	for {
		e, wait, err := f.arrive(c)
		switch {
		case err != nil:
			return nil, nil, err
		case wait != nil:
			select {
			case <-wait:
			case <-ctx.Done():
				return nil, nil, context.Cause(ctx)
			}
		case e != nil:
			if err := f.advance(ctx, c, e); err != nil {
				return nil, nil, err
			}
		default:
			if ctx, leave, ok := f.begin(ctx, c); ok {
				return ctx, leave, nil
			}
		}
	}
}

// arrive decides what an action of c has to do first: to wait, or to advance the entry
// that is returned, which is then busy; or nothing, if all it returns is nil.
func (f *Fence) arrive(c protocol.Context) (_ *entry, wait <-chan struct{}, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := keyOf(c.Instance, c.Workspace)
	e := f.entries[k]
	if e == nil {
		if n := f.max(); len(f.entries) >= n {
			return nil, nil, protocol.Errorf(protocol.PermissionError,
				"the runtime knows %d workspaces, which is box.limits.max_admission_records: raise that", n)
		}
		e = &entry{}
		f.entries[k] = e
	}
	switch {
	case c.Generation < max(e.generation, 1):
		return nil, nil, protocol.ErrStale
	case e.busy != nil:
		return nil, e.busy, nil
	case c.Generation > e.generation || e.dirty:
		e.busy = make(chan struct{})
		return e, nil, nil
	}
	return nil, nil, nil
}

// begin registers an action of the current generation.
func (f *Fence) begin(ctx context.Context, c protocol.Context) (context.Context, func(), bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.entries[keyOf(c.Instance, c.Workspace)]
	if e == nil || e.generation != c.Generation || e.busy != nil || e.dirty {
		return nil, nil, false // it was advanced in between: come again
	}
	ctx, cancel := context.WithCancelCause(ctx)
	a := &action{cancel}
	if e.running == nil {
		e.running = map[*action]struct{}{}
	}
	e.running[a] = struct{}{}
	return ctx, func() {
		f.mu.Lock()
		delete(e.running, a)
		f.mu.Unlock()
		cancel(context.Canceled)
	}, true
}

// advance makes c's generation the current one of e, which the caller has made busy.
func (f *Fence) advance(ctx context.Context, c protocol.Context, e *entry) error {
	defer f.idle(c, e)
	ctx = context.WithoutCancel(ctx)
	if e.generation == 0 { // nobody changes it while e is busy
		return f.begins(ctx, c, e)
	}
	if c.Generation > e.generation {
		if err := save(f.db, c, true); err != nil {
			return err
		}
		f.supersede(c, e)
	}
	if err := f.advanced(ctx, c); err != nil {
		return err
	}
	f.mu.Lock()
	e.dirty = false
	f.mu.Unlock()
	// Not to have this on disk means only that it is cleaned once more after a restart.
	return save(f.db, c, false)
}

// begins is advance for a workspace that was never seen: there is no older generation
// to keep out meanwhile, so one write is enough.
func (f *Fence) begins(ctx context.Context, c protocol.Context, e *entry) error {
	if err := f.advanced(ctx, c); err != nil {
		return err
	}
	if err := save(f.db, c, false); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e.generation = c.Generation
	return nil
}

// supersede ends what is under way in older generations.
func (f *Fence) supersede(c protocol.Context, e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e.generation, e.dirty = c.Generation, true
	for a := range e.running {
		a.cancel(protocol.ErrStale)
	}
	clear(e.running)
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// idle lets in who waits. An entry that has never had a generation is forgotten: it
// takes no room.
func (f *Fence) idle(c protocol.Context, e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(e.busy)
	e.busy = nil
	if e.generation == 0 {
		delete(f.entries, keyOf(c.Instance, c.Workspace))
	}
}

// Check fails with protocol.ErrStale if c is not of the current generation any more: to
// be called after an action, before its result is given away.
func (f *Fence) Check(c protocol.Context) error {
	if now, ok := f.Current(c.Instance, c.Workspace); ok && now == c.Generation {
		return nil
	}
	return protocol.ErrStale
}

// Current returns the generation of a workspace, if it is known.
func (f *Fence) Current(instance, workspace string) (int64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.entries[keyOf(instance, workspace)]
	if e == nil || e.generation == 0 {
		return 0, false
	}
	return e.generation, true
}

// Advance makes c's generation the current one, as Enter does, without an action.
func (f *Fence) Advance(ctx context.Context, c protocol.Context) error {
	_, leave, err := f.Enter(ctx, c)
	if err != nil {
		return err
	}
	leave()
	return nil
}

// Watch returns a channel that is closed as soon as c's generation is not the current
// one any more. If it is not now, the channel is closed already.
func (f *Fence) Watch(c protocol.Context) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.entries[keyOf(c.Instance, c.Workspace)]
	if e == nil || e.generation != c.Generation {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed
}
