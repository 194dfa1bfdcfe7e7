package session

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// session is one session. The package comment describes its locks.
type session struct {
	m   *Manager
	key Key

	ctx    context.Context // ends when the session is to be removed, or the manager closes
	cancel context.CancelFunc
	once   bool          // it is a run, see [Manager.Run]; constant
	zygote *spec.Zygote  // of the command of a run, if a box of the pool comes with it; constant
	op     chan struct{} // holds a token while the state of the session is being changed

	lastUsed atomic.Int64 // on the clock of m.now
	armed    atomic.Bool  // the heap has a deadline for this session, not later than its own
	at       *deadline    // guarded by m.mu

	usage    workspaceUse
	metering sync.Mutex // one counting of its box at a time; see meter.go

	// settled is closed when it is known what an earlier manager left of the session; see
	// takeOver. It is replaced only before the session is shared.
	settled  chan struct{}
	removed  chan struct{} // closed when the session has left the registry
	stumbled chan struct{} // closed when the first attempt to remove it failed

	mu sync.Mutex // guards what follows

	// record is what the session is, as far as the database has it; see recordLocked. Its
	// Resolved is replaced as a whole, because views share it.
	record  sessionRecord
	coming  []engine.Mount // that a change under way adds to those of record; see makeSensitive
	bornAt  time.Duration  // CreatedAt on the clock of m.now; negative if before Open
	lifeEnd time.Duration  // on the clock of m.now; 0: never
	release func()         // returns the reservation in the ledger

	// Its box.
	box       engine.LiveBox // nil without a box; of a failed session, the dead box until clearBox
	recording *recording     // last attempt to record that the box runs; nil if the box was taken over
	attempt   *attempt       // attempt under way to take over the box; nil if there is none
	made      bool           // the session has had a box
	proxy     *egress.Proxy  // its network; nil without one, shut once the session is sensitive
	// networkOff says why the box has no network although the session has one; empty: it is on, or the
	// session has none.
	networkOff string
	seen       *networkLog // of its last network; nil before the first
	meter      meter       // of the box

	// What leads into it from outside.
	published []*publishedPort
	callers   map[*caller]struct{} // connections through published ports

	// What runs in it.
	uses       int // calls that use it now
	execs      int
	watches    int        // of directories; see MaxWatches
	looking    sync.Mutex // held during a look at the ports of its box; before mu
	ports      boxPorts   // as found then
	tidying    sync.Mutex // held while code is removed in the background
	running    int        // managed processes that have not ended
	waiting    int        // ended ones that wait for their restart
	exempt     bool       // the running and waiting ones exempt the session from the idle TTL
	processes  map[string]*Process
	standstill standstill
	commands   map[context.Context]context.CancelCauseFunc // that the guard can end; see commandContext
	visits     map[*visit]struct{}
	dialled    map[*visitConn]struct{}    // open connections to ports of the box
	linksSeen  map[linkSeen]time.Duration // when visits by a link were logged last, on the clock of m.now
	// overDiskUntil: the guard has ended everything in the session, which may take until then.
	overDiskUntil  time.Duration
	workspaceBytes int64 // as measured last

	// Its end.
	removing  bool
	removeErr error // of the last attempt to remove it
	erased    bool  // the deletion of its record has begun
	retired   bool  // it has ended, and another session of its key stays for the workspace
	gone      bool  // it has left the registry
	goneErr   error // why it could not be created
}

func newSession(m *Manager, key Key) *session {
	ctx, cancel := context.WithCancel(m.ctx)
	s := &session{
		m: m, key: key, ctx: ctx, cancel: cancel,
		op: make(chan struct{}, 1), removed: make(chan struct{}), stumbled: make(chan struct{}), settled: settled,
		record:    sessionRecord{Tenant: key.Tenant, ID: key.ID, State: Creating, CreatedAt: time.Now().Round(0)},
		processes: map[string]*Process{},
	}
	s.bornAt = m.now()
	s.touch()
	return s
}

// settled is the closed channel of sessions that no earlier manager has left.
var settled = func() chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}()

func notFound(key Key) error { return fmt.Errorf("session %q: %w", key.ID, ErrNotFound) }

// touch counts as a use of the session. It is cheap: the deadline in the heap moves only
// when it is due.
func (s *session) touch() { s.lastUsed.Store(int64(s.m.now())) }

// lockOp takes the session's op, or gives up when ctx ends.
func (s *session) lockOp(ctx context.Context) error {
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

func (s *session) unlockOp() { <-s.op }

// errRemoved is the cause with which calls end because the session is being removed.
var errRemoved = fmt.Errorf("the session is being removed: %w", ErrState)

// callContext returns a context that ends with ctx, and when the session is to be removed.
func (s *session) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
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

// aliveLocked reports whether commands can run in the session.
func (s *session) aliveLocked() bool {
	return s.record.State == Running && s.box != nil && !isDone(s.box.Done())
}

func (s *session) view() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, used, r := s.m.now(), time.Duration(s.lastUsed.Load()), &s.record
	v := View{
		Key: s.key, State: r.State, Reason: r.Reason, Generation: r.Generation, Resolved: s.resolvedLocked(), Sensitive: r.Sensitive,
		Execs: s.execs, Processes: s.running, WorkspaceBytes: s.workspaceBytes, Unenforced: r.Unenforced,
		CreatedAt: r.CreatedAt, LastUsed: s.m.wall(used), Published: s.publishedLocked(),
	}
	if v.Resolved.Network {
		v.NetworkOff = s.networkOff
	}
	if r.Image != nil {
		v.ImageDigest = r.Image.Digest
	}
	v.Resolved.Decisions, v.Volumes = nil, s.m.named.among(r.Resolved.Mounts)
	if r.State == Running {
		v.Box, v.Built = r.Box, r.Built
	}
	if s.pausedLocked() {
		v.PausedAt = r.Paused.Since
	}
	if end, ok := s.deadlineLocked(); ok {
		v.ExpiresAt = s.m.wall(max(end, now))
	}
	return v
}

// wall returns the wall time of t, without a monotonic part.
func (m *Manager) wall(t time.Duration) time.Time {
	return time.Now().Add(t - m.now()).Round(0)
}

// recordLocked returns the session's record, to be stored.
func (s *session) recordLocked() *sessionRecord {
	r := s.record
	r.Resolved = s.resolvedLocked()
	r.Fresh = r.Fresh && r.State == Creating
	if r.LifeLeft = 0; s.lifeEnd > 0 {
		r.LifeLeft = max(1, s.lifeEnd-s.m.now())
	}
	if s.proxy != nil {
		r.NetworkBytes = s.proxy.Spent()
	}
	return &r
}

// putLocked returns the change that stores the session's record: none for a run, see [Manager.Run].
func (s *session) putLocked() []change {
	if s.once {
		return nil
	}
	return []change{s.recordLocked().put()}
}

// resolvedLocked returns what the session has.
func (s *session) resolvedLocked() policy.Resolved {
	r := s.record.Resolved
	if s.record.Sensitive != nil {
		r.Sensitive, r.Network, r.Publish = true, false, nil
	}
	return r
}

// comparableLocked returns what a request is compared with: a session for which any engine would do has
// the one that built its box.
func (s *session) comparableLocked() policy.Resolved {
	r := s.resolvedLocked()
	r.Engine = cmp.Or(r.Engine, s.record.Built.Engine)
	return r
}

// setLifeLocked sets the end of the lifetime, of which at most left remains.
func (s *session) setLifeLocked(left time.Duration) {
	s.lifeEnd = 0
	if s.record.Resolved.MaxLifetime > 0 {
		s.lifeEnd = max(1, s.m.now()+min(left, s.record.Resolved.MaxLifetime.D()))
	}
}
