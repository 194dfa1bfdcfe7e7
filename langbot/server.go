package langbot

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/internal/keyed"
	"github.com/boxd/boxd/langbot/door"
	"github.com/boxd/boxd/langbot/fence"
	"github.com/boxd/boxd/langbot/grants"
	"github.com/boxd/boxd/langbot/skills"
	"github.com/boxd/boxd/langbot/transfer"
	"github.com/boxd/boxd/session"
)

// Server carries out the requests of the door's clients. It is safe for concurrent use.
type Server struct {
	o        Options
	sessions *session.Manager
	log      *slog.Logger
	store    *store
	fence    *fence.Fence
	book     *grants.Book
	base     *settings // of every instance that has not sent box_init yet

	skills     *skills.Store
	skillsMade sync.Map  // volumes and directories of skills that exist and have their limits
	softSkills sync.Once // logs once that a file system cannot limit skills
	uploads    *transfer.Pool

	ops    keyed.Locks
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // background work

	// unknown has a channel, closed once the session is gone, for each session without a record
	// that New found, by its ID in the manager. It does not change after New.
	unknown map[string]chan struct{}

	hung     atomic.Int64 // actions that were answered while they still run, see inTime
	clearing atomic.Bool  // see clearSoon
	clears   sync.Map     // workspaces whose sessions are being removed, see clearDue

	mu       sync.Mutex
	closed   bool
	boxes    map[string]*box      // by physical ID, in every state
	settings map[string]*settings // by instance
	admits   string               // the instance whose box_init required admission; empty until one does
	latest   string               // the instance that sent the most recent box_init
	strict   cached               // readiness where admission is required
}

var _ door.Backend = (*Server)(nil)

// New opens the database and takes over what an earlier Server left behind.
func New(o Options) (_ *Server, err error) {
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	s := &Server{
		o: o, sessions: o.Sessions, log: o.Logger,
		skills: skills.New(o.Logger), uploads: transfer.NewPool(maxUploads),
		boxes: map[string]*box{}, settings: map[string]*settings{},
	}
	s.base = s.initial()
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	db, err := s.openDB(o.DB)
	if err != nil {
		return nil, err
	}
	s.store = &store{db: db}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.fence, err = fence.Open(db, s.maxRecords, s.advanced); err != nil {
		return nil, err
	}
	if s.book, err = grants.Open(db, time.Now); err != nil {
		return nil, err
	}
	// If the operator's settings require admission, they count from the start. If they do not,
	// only box_init may say so: see grants.Book.
	admission := s.base.said["admission"]
	if p, _ := grants.ParsePolicy(admission); p.Required {
		if err := s.book.Configure(admission); err != nil {
			return nil, err
		}
	}
	sub := s.sessions.Subscribe(s.o.Tenant, 0)
	if err := s.takeOver(); err != nil {
		sub.Close()
		return nil, err
	}
	s.wg.Go(func() { s.follow(sub) })
	s.wg.Go(s.sweep)
	return s, nil
}

// maxRecords is how many workspaces the fence may know: the highest limit of any instance.
func (s *Server) maxRecords() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := s.base.limits.MaxAdmissionRecords
	for _, st := range s.settings {
		most = max(most, st.limits.MaxAdmissionRecords)
	}
	return int(most)
}

// Close ends relays with code 1001 and releases everything. Sessions and processes stay.
// Close the doors before the server, and Options.Sessions after it.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var relays sync.WaitGroup
	for _, relay := range s.relaysOf(s.boxesWhere(anyBox)) {
		relays.Go(func() { relay.Close(closeGoingAway, "Box runtime shutting down") })
	}
	relays.Wait()
	s.cancel(errShutdown)
	if s.o.Prober != nil {
		s.o.Prober.Close()
	}
	s.wg.Wait()
	return s.store.close()
}

// Current returns the generation of a workspace, and whether the workspace is known.
func (s *Server) Current(instance, workspace string) (int64, bool) {
	return s.fence.Current(instance, workspace)
}

// background runs f for work that no client waits for, or that outlives the request. ctx ends
// when the server closes; a closed server starts nothing.
func (s *Server) background(f func(ctx context.Context)) (begun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Go(func() { f(s.ctx) })
	return true
}
