package session

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/choose"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session/history"
	"github.com/boxd/boxd/session/workspace"
)

// Manager holds all sessions. It is safe for concurrent use.
type Manager struct {
	options    Options
	engine     engine.Service
	engines    *choose.Chooser[engine.LiveBox] // over engine, for the boxes of sessions
	policy     *policy.Policy
	ledger     *policy.Ledger
	throttle   *policy.Throttle
	log        *slog.Logger
	store      *store
	workspaces *workspace.Store
	lock       *os.File
	opened     time.Time // all TTLs are measured from its monotonic clock
	events     *broker
	errors     errorLog
	counters   counters
	volumes    volumes
	history    *history.Store
	named      namedVolumes
	counted    atomic.Int64 // when usage was last counted for somebody, on the clock of now
	sensitive  sensitivity
	publishing publishing
	portWatch  portWatch
	lines      tenantLines
	imageUsers imageUsers
	noShares   atomic.Bool               // the host cannot limit directories: see limitShare
	boxEnds    atomic.Pointer[func(Key)] // see WhenBoxEnds

	ctx    context.Context // ends when the manager closes
	cancel context.CancelFunc
	wg     sync.WaitGroup // counts every goroutine and every call under way

	mu        sync.Mutex
	sessions  map[Key]*session
	deadlines deadlines
	closing   bool // nothing new begins
	joined    bool // Close waits for wg, so nothing may be added to it

	tidied  tidied
	tidying chan struct{} // holds a token for each run that is being removed in the background
	reapers chan struct{} // holds a token for each expired session that is being removed
	wake    chan struct{} // signals that the first deadline has changed
	adopted chan struct{} // closed when takeOverAll has tried each session once
	done    chan struct{} // closed when Close has ended
}

// now returns the monotonic time since Open, which does not change when the wall clock is
// set.
func (m *Manager) now() time.Duration { return time.Since(m.opened) }

// lookup finds the session key and counts a call in m.wg; the caller calls m.wg.Done. With
// a, lookup makes a missing session: fresh is true then, and the caller holds its op.
func (m *Manager) lookup(key Key, a *asked) (s *session, fresh bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return nil, false, ErrClosed
	}
	s = m.sessions[key]
	if s == nil && a == nil {
		return nil, false, notFound(key)
	}
	if s == nil {
		s, fresh = newSession(m, key), true
		s.once, s.zygote = a.once, a.zygote
		s.op <- struct{}{}
		m.sessions[key] = s
	}
	m.wg.Add(1)
	return s, fresh, nil
}

// find returns the session key, without counting a call.
func (m *Manager) find(key Key) (*session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[key]; s != nil {
		return s, nil
	}
	return nil, notFound(key)
}

// all returns the sessions of tenant, or of all tenants with "", sorted by key.
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
		return cmp.Or(strings.Compare(a.key.Tenant, b.key.Tenant), strings.Compare(a.key.ID, b.key.ID))
	})
	return list
}

// forget takes s out of the registry and publishes events under the same lock. So
// a subscriber that receives them no longer finds s, and has received no event of a later
// session with the same ID. The caller holds the op of s.
func (m *Manager) forget(s *session, cause error, events ...Event) {
	m.succeed(s, nil, cause, events...)
}

// succeed is forget with another session in the place of s, unless next is nil.
func (m *Manager) succeed(s, next *session, cause error, events ...Event) {
	m.named.settle(s.key, nil)
	m.mu.Lock()
	switch {
	case m.sessions[s.key] != s:
	case next != nil:
		m.sessions[s.key] = next
	default:
		delete(m.sessions, s.key)
	}
	m.deadlines.drop(s)
	for _, e := range events {
		m.events.publish(e)
	}
	m.mu.Unlock()
	for _, e := range events {
		m.logEvent(e)
	}

	s.mu.Lock()
	s.gone, s.goneErr = true, cause
	s.mu.Unlock()
	s.cancel()
	close(s.removed)
}

// spawn runs fn in a goroutine that Close waits for; fn must end soon after m.ctx. It
// returns false, without running fn, once Close waits.
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

// discardLater removes, in the background, a box that may exist and was not adopted.
func (m *Manager) discardLater(id string) {
	m.spawn(func() { m.discard(id) })
}

// discardHolding is discardLater for a box of session key with these mounts: until it is gone, no
// other session gets its named volumes.
func (m *Manager) discardHolding(key Key, id string, mounts []engine.Mount) {
	done := m.named.hold(key, id, mounts)
	m.spawn(func() {
		if m.discard(id); m.ctx.Err() == nil {
			done()
		}
	})
}

// discard removes a box that may exist. It retries until that succeeds or m.ctx ends.
func (m *Manager) discard(id string) {
	m.retry(func(ctx context.Context) error { return m.engine.Discard(ctx, id) })
}

// removeLater removes, in the background, a box that was adopted and is not needed.
func (m *Manager) removeLater(box engine.LiveBox) {
	m.spawn(func() {
		if box.Remove(m.ctx) != nil { // it has released the box even so
			m.discard(box.ID())
		}
	})
}

// findSettled is find, but waits until it is known what an earlier manager left of the
// session.
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
	_ = s.takeOver(m.ctx) // without it, the view shows the last recorded state
	return s.view(), nil
}

// List returns the sessions of tenant, or of all tenants with "", sorted by key. It does
// not count as use. A session whose box has not been taken over yet is shown as recorded.
func (m *Manager) List(tenant string) []View {
	list := m.all(tenant)
	views := make([]View, len(list))
	for i, s := range list {
		views[i] = s.view()
	}
	return views
}

// Peek returns the box of session key, or nil if it has none at the moment. It is meant for
// status: it does not count as use.
func (m *Manager) Peek(key Key) (engine.LiveBox, error) {
	s, err := m.findSettled(key)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record.State != Running {
		return nil, nil
	}
	return s.box, nil
}

// Storage returns Options.Storage, which may be nil.
func (m *Manager) Storage() engine.Storage { return m.options.Storage }

// Engines lists what boxes of sessions can be built with, in the order in which it is tried, as it was at
// most 5 s ago.
func (m *Manager) Engines(ctx context.Context) ([]engine.EngineState, error) {
	return m.engines.States(ctx, m.policy.EngineOrder())
}

// Profiles lists the profiles of the policy.
func (m *Manager) Profiles() []policy.Profile { return m.policy.Profiles() }

// DefaultProfile is the profile of a request of tenant that names none.
func (m *Manager) DefaultProfile(tenant string) string { return m.policy.DefaultProfile(tenant) }

// Quota returns what tenant uses and may use; "" stands for all tenants together.
func (m *Manager) Quota(tenant string) (policy.Use, policy.Quotas) {
	return m.ledger.InUse(tenant), m.ledger.Limits(tenant)
}

// AdmitRequest counts a request about tenant of a caller whose token has limits, or refuses it with a
// *[policy.RateError]. Doors call it; the methods that create and run things count those themselves. An
// empty tenant stands for all, and has no limit.
func (m *Manager) AdmitRequest(tenant string, limits *policy.Limiter) error {
	return m.throttle.Admit(tenant, limits, policy.RequestRate)
}

// Subscribe returns the events of tenant, or of all tenants with "", from now on. If since
// is above 0, the kept events after that sequence number come first.
func (m *Manager) Subscribe(tenant string, since uint64) *Subscription {
	return m.events.subscribe(tenant, since)
}

// Errors returns the last 100 errors, newest first.
func (m *Manager) Errors() []ErrorRecord { return m.errors.newest() }
