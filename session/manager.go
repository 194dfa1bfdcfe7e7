package session

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session/workspace"
)

// Manager holds all sessions. It is safe for concurrent use.
type Manager struct {
	options    Options
	engine     engine.Service
	policy     *policy.Policy
	ledger     *policy.Ledger
	log        *slog.Logger
	store      *store
	workspaces *workspace.Store
	lock       *os.File
	opened     time.Time // all TTLs are measured from its monotonic clock
	events     *broker
	errors     errorLog
	counters   counters
	volumes    volumes
	noShares   atomic.Bool // see limitShare

	ctx    context.Context // ends when the manager closes
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine and every call under way

	mu        sync.Mutex
	sessions  map[Key]*session
	deadlines deadlines
	closing   bool // nothing new is begun
	joined    bool // nothing is added to wg any more

	reapers chan struct{} // holds a token per expired session that is being removed
	wake    chan struct{} // the first deadline has changed
	adopted chan struct{} // each session has been tried once: see takeOverAll
	done    chan struct{} // Close has ended
}

// now is the monotonic time since Open, which a stepped clock does not change.
func (m *Manager) now() time.Duration { return time.Since(m.opened) }

// lookup finds the session key and counts a call in m.wg, which the caller gives back
// with m.wg.Done. With create a missing one is made: fresh, and with its op held.
func (m *Manager) lookup(key Key, create bool) (s *session, fresh bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return nil, false, ErrClosed
	}
	s = m.sessions[key]
	if s == nil && !create {
		return nil, false, notFound(key)
	}
	if s == nil {
		s, fresh = newSession(m, key), true
		s.op <- struct{}{}
		m.sessions[key] = s
	}
	m.wg.Add(1)
	return s, fresh, nil
}

// find returns the session key for looking at it.
func (m *Manager) find(key Key) (*session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[key]; s != nil {
		return s, nil
	}
	return nil, notFound(key)
}

// all returns the sessions of tenant, or of all with "", sorted.
func (m *Manager) all(tenant string) []*session {
	m.mu.Lock()
	list := make([]*session, 0, len(m.sessions))
	for key, s := range m.sessions {
		if tenant == "" || key.Tenant == tenant {
			list = append(list, s)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(list, func(a, b *session) int {
		if c := strings.Compare(a.key.Tenant, b.key.Tenant); c != 0 {
			return c
		}
		return strings.Compare(a.key.ID, b.key.ID)
	})
	return list
}

// forget takes s out of the registry, and tells subscribers with that, so that who hears
// of it does not find it any more, and nothing of another one of its id comes before. Its
// op is held.
func (m *Manager) forget(s *session, cause error, told ...Event) {
	m.mu.Lock()
	if m.sessions[s.key] == s {
		delete(m.sessions, s.key)
	}
	m.deadlines.drop(s)
	for _, e := range told {
		m.events.publish(e)
	}
	m.mu.Unlock()
	for _, e := range told {
		m.logEvent(e)
	}

	s.mu.Lock()
	s.gone, s.goneErr = true, cause
	s.mu.Unlock()
	s.cancel()
	close(s.removed)
}

// spawn runs fn in a goroutine that Close waits for; fn must end soon after m.ctx.
// It is false, and fn not run, once Close waits.
func (m *Manager) spawn(fn func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.joined {
		return false
	}
	m.wg.Go(fn)
	return true
}

// retry calls fn until it succeeds or m.ctx ends, with growing pauses.
func (m *Manager) retry(fn func(ctx context.Context) error) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		if fn(m.ctx) == nil {
			return
		}
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// discardLater removes a box that may exist and was not adopted.
func (m *Manager) discardLater(id string) {
	m.spawn(func() { m.discard(id) })
}

// discard removes a box that may exist, however often that has to be tried.
func (m *Manager) discard(id string) {
	m.retry(func(ctx context.Context) error { return m.engine.Discard(ctx, id) })
}

// removeLater removes a box that is held and not needed.
func (m *Manager) removeLater(box engine.LiveBox) {
	m.spawn(func() {
		if box.Remove(m.ctx) != nil { // which has let go of it
			m.discard(box.ID())
		}
	})
}

// findSettled is find, and waits until it is known what an earlier manager has left of
// the session.
func (m *Manager) findSettled(key Key) (*session, error) {
	s, err := m.find(key)
	if err == nil {
		err = s.takeOver(m.ctx)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Get returns a session. It does not count as use.
func (m *Manager) Get(key Key) (View, error) {
	s, err := m.find(key)
	if err != nil {
		return View{}, err
	}
	_ = s.takeOver(m.ctx) // else it is as it was: there is no news of it yet
	return s.view(), nil
}

// List returns the sessions of tenant, or of all tenants with "", sorted by key. It
// does not count as use. One whose box has not been taken over yet is as it was.
func (m *Manager) List(tenant string) []View {
	list := m.all(tenant)
	views := make([]View, len(list))
	for i, s := range list {
		views[i] = s.view()
	}
	return views
}

// Peek returns the box of session key without counting as use, for status; nil if it
// has none at the moment.
func (m *Manager) Peek(key Key) (engine.LiveBox, error) {
	s, err := m.findSettled(key)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Running {
		return nil, nil
	}
	return s.box, nil
}

// Storage returns Options.Storage, which may be nil.
func (m *Manager) Storage() engine.Storage { return m.options.Storage }

// Profiles lists the profiles of the policy.
func (m *Manager) Profiles() []policy.Profile { return m.policy.Profiles() }

// Quota returns what tenant uses and may use; "" is all tenants together.
func (m *Manager) Quota(tenant string) (policy.Use, policy.Quotas) {
	return m.ledger.InUse(tenant), m.ledger.Limits(tenant)
}

// Subscribe returns the events of tenant, or of all with "", from now on; with since
// above 0 those after it first, as far as they are kept.
func (m *Manager) Subscribe(tenant string, since uint64) *Subscription {
	return m.events.subscribe(tenant, since)
}

// Errors returns the last 100 errors, newest first.
func (m *Manager) Errors() []ErrorRecord { return m.errors.newest() }
