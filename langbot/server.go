package langbot

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/internal/keyed"
	"github.com/boxd/boxd/langbot/door"
	"github.com/boxd/boxd/langbot/fence"
	"github.com/boxd/boxd/langbot/grants"
	"github.com/boxd/boxd/langbot/skills"
	"github.com/boxd/boxd/langbot/transfer"
	"github.com/boxd/boxd/session"
)

// Server does what clients of the door ask for. It is safe for concurrent use.
type Server struct {
	o        Options
	sessions *session.Manager
	log      *slog.Logger
	db       *bbolt.DB
	store    *store
	fence    *fence.Fence
	book     *grants.Book
	skills   *skills.Store
	base     *settings // of every instance that has said nothing yet
	skillState

	ops    keyed.Locks
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // what runs in the background

	hung     atomic.Int64 // actions that were answered for, see inTime
	clearing atomic.Bool  // see clearSoon
	clears   sync.Map     // workspaces that are being cleared

	mu       sync.Mutex
	closed   bool
	boxes    map[string]*box      // by physical id, in every state
	byKey    map[string]*box      // the same, by the manager's id
	settings map[string]*settings // by instance
	admits   string               // the instance whose policy requires admission; empty: none has said so yet
	latest   string               // the instance that has said something last
	strict   cached               // readiness where admission is required
}

var _ door.Backend = (*Server)(nil)

// New opens the database and takes over what an earlier Server has left.
func New(o Options) (_ *Server, err error) {
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	s := &Server{
		o: o, sessions: o.Sessions, log: o.Logger,
		boxes: map[string]*box{}, byKey: map[string]*box{}, settings: map[string]*settings{},
	}
	s.base = s.initial()
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.uploads = transfer.NewPool(maxUploads)
	s.skills = skills.New(skills.Options{Logger: o.Logger})
	if s.db, err = s.openDB(o.DB); err != nil {
		return nil, err
	}
	s.store = &store{db: s.db}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) open() (err error) {
	if s.fence, err = fence.Open(s.db, s.maxRecords, s.advanced); err != nil {
		return err
	}
	if s.book, err = grants.Open(s.db, time.Now); err != nil {
		return err
	}
	if err := s.requireAdmission(); err != nil {
		return err
	}
	sub := s.sessions.Subscribe(s.o.Tenant, 0)
	if err := s.takeOver(); err != nil {
		sub.Close()
		return err
	}
	s.wg.Go(func() { s.follow(sub) })
	s.wg.Go(s.sweep)
	return nil
}

// maxRecords is how many workspaces the fence may know: as many as the most generous
// instance wants.
func (s *Server) maxRecords() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := s.base.limits.MaxAdmissionRecords
	for _, st := range s.settings {
		most = max(most, st.limits.MaxAdmissionRecords)
	}
	return int(most)
}

// Close ends relays with 1001 and lets go of everything. Sessions and processes stay.
// The doors must be closed before, and Options.Sessions after it.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.closeRelays()
	s.cancel(errShutdown)
	s.o.Prober.Close()
	s.wg.Wait()
	return s.store.close()
}

// Current is the generation of a workspace, if it has ever been seen.
func (s *Server) Current(instance, workspace string) (int64, bool) {
	return s.fence.Current(instance, workspace)
}
