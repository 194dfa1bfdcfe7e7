package langbot

import (
	"context"
	"time"

	"github.com/boxd/boxd/langbot/grants"
)

// sweepEvery is how often it is looked for grants that have expired. They admit nobody
// from that moment on; what they have left runs a little longer.
const sweepEvery = 10 * time.Second

func (k *call) asker() grants.Asker {
	return grants.Asker{Instance: k.at.Instance, Current: k.s.fence.Current, MaxRecords: int(k.settings().limits.MaxAdmissionRecords)}
}

// upsertGrant admits a workspace for a while, and ends what it has from before.
func (k *call) upsertGrant(ctx context.Context) (any, error) {
	g, purge, err := k.s.book.Upsert(k.data, k.asker())
	if err != nil {
		return nil, err
	}
	if err := k.s.fence.Advance(ctx, g.Context()); err != nil {
		return nil, err
	}
	if purge {
		if err := k.s.clear(ctx, g.Instance, g.Workspace); err != nil {
			return nil, err
		}
		return g.Reply(), nil
	}
	only, err := g.Context().Physical(grants.LogicalSession)
	if err != nil {
		return nil, err
	}
	others := k.s.boxesWhere(func(b *box) bool {
		return b.at.Instance == g.Instance && b.at.Workspace == g.Workspace && b.physical != only
	})
	return g.Reply(), k.s.endAll(ctx, k.who(), others, "its workspace may have one session, of another name")
}

// revokeGrant takes the admission of a workspace away, with all it has.
func (k *call) revokeGrant(ctx context.Context) (any, error) {
	v, err := k.s.book.Revoke(k.data, k.asker())
	if err != nil {
		return nil, err
	}
	if err := k.s.clear(ctx, v.Instance, v.Workspace); err != nil {
		return nil, err
	}
	return v.Reply(), nil
}

// clear ends all sessions of a workspace that have to go.
func (s *Server) clear(ctx context.Context, instance, workspace string) error {
	due, dirty := s.book.DueOf(instance, workspace)
	if !dirty {
		return nil
	}
	return s.clearOne(ctx, due)
}

func (s *Server) clearOne(ctx context.Context, due grants.Due) error {
	list := s.boxesWhere(func(b *box) bool { return b.at.Instance == due.Instance && b.at.Workspace == due.Workspace })
	for _, b := range list {
		s.shutRelays(b)
	}
	if err := s.endAll(ctx, s.self(), list, "the admission of its workspace has ended"); err != nil {
		return err
	}
	return s.book.Done(due)
}

// clearDue ends the sessions of workspaces whose grant has expired, and whatever has to
// go from before a restart.
func (s *Server) clearDue(ctx context.Context) {
	list, err := s.book.Due()
	s.stillDue(ctx, err)
	for _, due := range list {
		who := due.Instance + "\x00" + due.Workspace
		if _, busy := s.clears.LoadOrStore(who, true); busy {
			continue
		}
		if !s.background(func(ctx context.Context) {
			defer s.clears.Delete(who)
			s.stillDue(ctx, s.clearOne(ctx, due))
		}) {
			return
		}
	}
}

func (s *Server) stillDue(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		s.log.Warn("ending what is not admitted any more (it is tried again)", "error", err)
	}
}

// clearSoon is clearDue beside what the caller does; however many ask, it is done once at
// a time.
func (s *Server) clearSoon() {
	if !s.clearing.CompareAndSwap(false, true) {
		return
	}
	s.background(func(ctx context.Context) {
		defer s.clearing.Store(false)
		s.clearDue(ctx)
	})
}

// sweep runs until the server closes.
func (s *Server) sweep() {
	for {
		s.clearDue(s.ctx)
		select {
		case <-time.After(sweepEvery):
		case <-s.ctx.Done():
			return
		}
	}
}
