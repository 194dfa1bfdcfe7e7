package session

import (
	"context"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// Manager holds all sessions. It is safe for concurrent use.
type Manager struct{}

// Open takes the state directory (ErrLocked if another daemon has it), and goes on
// where the last manager ended: boxes and managed processes are taken over, what
// has no owner is removed.
func Open(ctx context.Context, o Options) (*Manager, error) { return &Manager{}, nil }

// Ensure returns the session key, making it or a new box for it if need be. A live
// one that differs in a field that r sets is a *[ConflictError]; mounts are changed
// live, if r.Mounts is not nil. An empty key.ID with r.Scope is the id of that scope.
func (m *Manager) Ensure(ctx context.Context, c Caller, key Key, r policy.Request) (View, error) {
	return View{}, ErrNotFound
}

// Get returns a session. It does not count as use.
func (m *Manager) Get(key Key) (View, error) { return View{}, ErrNotFound }

// List returns the sessions of tenant, or of all tenants with "", sorted by key. It
// does not count as use.
func (m *Manager) List(tenant string) []View { return nil }

// Update changes a live session. If something fails, nothing was changed.
func (m *Manager) Update(ctx context.Context, c Caller, key Key, u Update) (View, error) {
	return View{}, ErrNotFound
}

// Remove ends a session: what runs in it is killed, its box and the workspace that
// boxd keeps for it are removed. If ctx ends before that, it goes on by itself.
func (m *Manager) Remove(ctx context.Context, c Caller, key Key) error { return ErrNotFound }

// Exec runs a command in session key and waits for it. r says what session is
// wanted, as in Ensure; with nil it must exist. Cancelling ctx kills the command.
func (m *Manager) Exec(ctx context.Context, c Caller, key Key, r *policy.Request, e Exec) (ExecResult, error) {
	return ExecResult{}, ErrNotFound
}

// Start starts a managed process in session key and returns once it runs. r is as
// in Exec.
func (m *Manager) Start(ctx context.Context, c Caller, key Key, r *policy.Request, p ProcessSpec) (ProcessView, error) {
	return ProcessView{}, ErrNotFound
}

// Process returns a managed process, running or ended.
func (m *Manager) Process(key Key, id string) (*Process, error) { return nil, ErrNotFound }

// Processes lists the managed processes of a session, sorted by id. It does not
// count as use.
func (m *Manager) Processes(key Key) ([]ProcessView, error) { return nil, ErrNotFound }

// Box returns the box of session key, for files, ports and usage; r is as in Exec.
// The session counts as used until release is called, which must be done.
func (m *Manager) Box(ctx context.Context, c Caller, key Key, r *policy.Request) (box engine.LiveBox, release func(), err error) {
	return nil, nil, ErrNotFound
}

// Peek returns the box of session key without counting as use, for status; nil if it
// has none at the moment.
func (m *Manager) Peek(key Key) (engine.LiveBox, error) { return nil, ErrNotFound }

// Subscribe returns the events of tenant, or of all with "", from now on; with since
// above 0 those after it first, as far as they are kept.
func (m *Manager) Subscribe(tenant string, since uint64) *Subscription { return &Subscription{} }

// Stats returns the counters.
func (m *Manager) Stats() Stats { return Stats{} }

// Errors returns the last 100 errors, newest first.
func (m *Manager) Errors() []ErrorRecord { return nil }

// Profiles lists the profiles of the policy.
func (m *Manager) Profiles() []policy.Profile { return nil }

// Quota returns what tenant uses and may use; "" is all tenants together.
func (m *Manager) Quota(tenant string) (policy.Use, policy.Quotas) {
	return policy.Use{}, policy.Quotas{}
}

// Close lets go of all sessions, which live on; with stop they are ended first,
// persistent ones as well, as far as ctx allows: their records stay and their
// workspaces too, so that a next use makes a new box. Running commands are
// canceled. It waits for all that was started. Closing again does nothing.
func (m *Manager) Close(ctx context.Context, stop bool) error { return nil }
