// Package fence keeps old generations of a workspace out: once it has seen a generation, it
// refuses all lower ones, even after a restart. It knows nothing of sessions: when a
// generation ends, it calls a function that removes what the generation leaves behind.
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
	entries map[protocol.WorkspaceKey]*entry
}

// entry is one workspace.
type entry struct {
	generation int64 // 0: not yet known
	// dirty says that leftovers of older generations may still exist.
	dirty bool
	// busy is not nil while an action advances this entry; it is closed at the end of that.
	busy    chan struct{}
	running map[*action]struct{} // actions of the current generation
}

type action struct{ cancel context.CancelCauseFunc }

// Open returns the fence that is kept in db. max returns the maximum number of workspaces.
// advanced removes everything of c's workspace that does not belong to c's generation. The
// fence calls it once per advance, before any action of the new generation, and again for
// the next action if it failed or the process died meanwhile. It is not cancelled with the
// action for which it is called.
func Open(db *bbolt.DB, max func() int, advanced func(ctx context.Context, c protocol.Context) error) (*Fence, error) {
	entries, err := load(db)
	if err != nil {
		return nil, err
	}
	return &Fence{db: db, max: max, advanced: advanced, entries: entries}, nil
}

// Enter lets an action of c begin, and makes c's generation the current one if it is
// higher. The context that it returns is cancelled, with protocol.ErrStale as cause, when
// the generation advances. The caller must call leave at the end of the action.
func (f *Fence) Enter(ctx context.Context, c protocol.Context) (_ context.Context, leave func(), _ error) {
	for {
		f.mu.Lock()
		e, err := f.entryLocked(c)
		switch {
		case err != nil:
			f.mu.Unlock()
			return nil, nil, err
		case e.busy != nil:
			busy := e.busy
			f.mu.Unlock()
			select {
			case <-busy:
			case <-ctx.Done():
				return nil, nil, context.Cause(ctx)
			}
		case c.Generation > e.generation || e.dirty:
			e.busy = make(chan struct{})
			f.mu.Unlock()
			if err := f.advance(ctx, c, e); err != nil {
				return nil, nil, err
			}
		default:
			ctx, leave := f.registerLocked(ctx, e)
			f.mu.Unlock()
			return ctx, leave, nil
		}
	}
}

// entryLocked returns the entry of c's workspace, which it adds if the workspace is new.
func (f *Fence) entryLocked(c protocol.Context) (*entry, error) {
	k := protocol.KeyOf(c.Instance, c.Workspace)
	e := f.entries[k]
	switch {
	case c.Generation < 1, e != nil && c.Generation < e.generation:
		return nil, protocol.ErrStale
	case e != nil:
		return e, nil
	}
	if n := f.max(); len(f.entries) >= n {
		return nil, protocol.Errorf(protocol.PermissionError,
			"the runtime knows %d workspaces, which is box.limits.max_admission_records: raise that", n)
	}
	e = new(entry)
	f.entries[k] = e
	return e, nil
}

// registerLocked registers an action of the current generation.
func (f *Fence) registerLocked(ctx context.Context, e *entry) (_ context.Context, leave func()) {
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
	}
}

// advance makes c's generation the current one of e, which the caller has marked busy.
func (f *Fence) advance(ctx context.Context, c protocol.Context, e *entry) error {
	defer f.endAdvance(c, e)
	ctx = context.WithoutCancel(ctx)
	known := e.generation > 0 // it does not change while e is busy
	if known && c.Generation > e.generation {
		if err := save(f.db, c, true); err != nil {
			return err
		}
		f.supersede(c, e)
	}
	if err := f.advanced(ctx, c); err != nil {
		return err
	}
	if !known { // there was no older generation to keep out meanwhile, so one write is enough
		if err := save(f.db, c, false); err != nil {
			return err
		}
	}
	f.mu.Lock()
	e.generation, e.dirty = c.Generation, false
	f.mu.Unlock()
	if !known {
		return nil
	}
	// If this write fails, the removal is merely repeated after a restart.
	return save(f.db, c, false)
}

// supersede makes c's generation the current one, and cancels the actions of older ones.
func (f *Fence) supersede(c protocol.Context, e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e.generation, e.dirty = c.Generation, true
	for a := range e.running {
		a.cancel(protocol.ErrStale)
	}
	clear(e.running)
}

// endAdvance lets waiting actions continue. It removes an entry whose first advance has
// failed, so that it takes no room.
func (f *Fence) endAdvance(c protocol.Context, e *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(e.busy)
	e.busy = nil
	if e.generation == 0 {
		delete(f.entries, protocol.KeyOf(c.Instance, c.Workspace))
	}
}

// Check fails with protocol.ErrStale if c's generation is no longer the current one. It is
// to be called after an action, before its result is returned.
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
	e := f.entries[protocol.KeyOf(instance, workspace)]
	if e == nil || e.generation == 0 {
		return 0, false
	}
	return e.generation, true
}

// Advance makes c's generation the current one, as Enter does, but without an action.
func (f *Fence) Advance(ctx context.Context, c protocol.Context) error {
	_, leave, err := f.Enter(ctx, c)
	if err != nil {
		return err
	}
	leave()
	return nil
}
