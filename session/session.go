package session

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// session is one session. See the package comment for its locks.
type session struct {
	m       *Manager
	key     Key
	op      chan struct{} // holds a token while the state of the session is being changed
	removed chan struct{} // closed when it is out of the registry
	settled chan struct{} // closed when it is known what an earlier manager has left of it: see takeOver

	ctx    context.Context // ends when it is to be removed, or the manager closes
	cancel context.CancelFunc

	lastUsed atomic.Int64 // of m.now
	armed    atomic.Bool  // has a deadline in the heap, at or before its own
	at       *deadline    // guarded by m.mu

	mu          sync.Mutex
	state       State
	reason      string
	generation  int
	box         engine.LiveBox // nil without one; of a failed session, the dead one until it is being taken apart
	boxID       string
	attempt     *attempt        // to take over its box; nil while there is none
	recording   *recording      // the last attempt for this box; nil if it was taken over
	resolved    policy.Resolved // replaced as a whole: views share it
	unenforced  string          // see View
	fresh       bool            // see sessionRecord
	createdAt   time.Time
	bornAt      time.Duration // createdAt, of m.now; below 0 if before Open
	lifeEnd     time.Duration // of m.now; 0: never
	uses        int           // calls that use it now
	execs       int
	commands    map[int]context.CancelCauseFunc // that run, by number: see working
	lastCommand int
	// overDiskUntil: what runs was ended by the guard and may take until then.
	overDiskUntil time.Duration
	running       int  // managed processes that have not ended
	exempt        bool // running ones exempt from the idle TTL
	processes     map[string]*Process
	removing      bool
	removeErr     error         // of the last attempt to remove it
	stumbled      chan struct{} // closed when the first attempt failed
	made          bool          // has had a box
	erased        bool          // the end of its record was begun
	gone          bool
	goneErr       error  // why it could not be created
	release       func() // of what is reserved in the ledger

	measured int64 // bytes of the workspace

	measuring   sync.Mutex // one measurement of the workspace at a time; above mu
	measureNext time.Duration
	partial     bool   // the last one was incomplete
	unmeasure   func() // gives measured back to the ledger
}

func newSession(m *Manager, key Key) *session {
	ctx, cancel := context.WithCancel(m.ctx)
	s := &session{
		m: m, key: key, ctx: ctx, cancel: cancel,
		op: make(chan struct{}, 1), removed: make(chan struct{}), stumbled: make(chan struct{}), settled: settled,
		state: Creating, createdAt: time.Now().Round(0), processes: map[string]*Process{},
	}
	s.bornAt = m.now()
	s.touch()
	return s
}

// settled is what a session has whose past needs no look.
var settled = func() chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}()

func notFound(key Key) error { return fmt.Errorf("session %q: %w", key.ID, ErrNotFound) }

// touch counts as use. It is cheap: the deadline in the heap is moved when it is due.
func (s *session) touch() { s.lastUsed.Store(int64(s.m.now())) }

// begin takes the session's op, or gives up with ctx.
func (s *session) begin(ctx context.Context) error {
	select {
	case s.op <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.op <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for session %q: %w", s.key.ID, context.Cause(ctx))
	case <-s.m.ctx.Done():
		return ErrClosed
	}
}

func (s *session) end() { <-s.op }

// errRemoved is the cause of what ends because the session is removed.
var errRemoved = fmt.Errorf("the session is being removed: %w", ErrState)

// context ends with ctx, and when the session is to be removed.
func (s *session) context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() {
		if s.m.ctx.Err() != nil {
			cancel(ErrClosed)
		} else {
			cancel(errRemoved)
		}
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// isDone reports whether ch is closed.
func isDone(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// aliveLocked reports whether commands can run.
func (s *session) aliveLocked() bool {
	return s.state == Running && s.box != nil && !isDone(s.box.Done())
}

func (s *session) view() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.viewLocked()
}

func (s *session) viewLocked() View {
	now, used := s.m.now(), time.Duration(s.lastUsed.Load())
	v := View{
		Key: s.key, State: s.state, Reason: s.reason, Generation: s.generation, Resolved: s.resolved,
		Execs: s.execs, Processes: s.running, WorkspaceBytes: s.measured, Unenforced: s.unenforced,
		CreatedAt: s.createdAt, LastUsed: s.m.wall(used),
	}
	v.Resolved.Decisions = nil
	if s.state == Running {
		v.Box = s.boxID
	}
	if end, ok := s.deadlineLocked(); ok {
		v.ExpiresAt = s.m.wall(max(end, now))
	}
	return v
}

// wall is the wall time of t, without a monotonic part.
func (m *Manager) wall(t time.Duration) time.Time {
	return time.Now().Add(t - m.now()).Round(0)
}

// recordLocked is what is to be kept of the session.
func (s *session) recordLocked() *sessionRecord {
	r := &sessionRecord{
		Tenant: s.key.Tenant, ID: s.key.ID, State: s.state, Reason: s.reason, Generation: s.generation,
		Box: s.boxID, Resolved: s.resolved, Unenforced: s.unenforced, Fresh: s.fresh && s.state == Creating, CreatedAt: s.createdAt,
	}
	if s.lifeEnd > 0 {
		r.LifeLeft = max(1, s.lifeEnd-s.m.now())
	}
	return r
}

// setLifeLocked sets the end of the lifetime, of which at most left remains.
func (s *session) setLifeLocked(left time.Duration) {
	s.lifeEnd = 0
	if s.resolved.MaxLifetime > 0 {
		s.lifeEnd = max(1, s.m.now()+min(left, s.resolved.MaxLifetime.D()))
	}
}
