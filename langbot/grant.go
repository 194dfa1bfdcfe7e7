package langbot

import (
	"context"
	"time"

	"github.com/boxd/boxd/langbot/grants"
)

// sweepEvery is the time between two searches for expired grants. An expired grant admits
// nobody; the sessions that it leaves behind live on until the next search.
const sweepEvery = 10 * time.Second

func (k *call) asker() grants.Asker {
	return grants.Asker{Instance: k.at.Instance, Current: k.s.fence.Current, MaxRecords: int(k.settings().limits.MaxAdmissionRecords)}
}

// upsertGrant admits a workspace for a while, and ends the sessions that the grant does not cover.
func (k *call) upsertGrant(ctx context.Context) (any, error) {
	g, purge, err := k.s.book.Upsert(k.data, k.asker())
	if err != nil {
		return nil, err
	}
	if err := k.s.fence.Advance(ctx, g.Context()); err != nil {
		return nil, err
	}
	if purge {
		if err := k.s.clearWorkspace(ctx, g.Instance, g.Workspace); err != nil {
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

// revokeGrant withdraws the admission of a workspace, and ends all its sessions.
func (k *call) revokeGrant(ctx context.Context) (any, error) {
	v, err := k.s.book.Revoke(k.data, k.asker())
	if err != nil {
		return nil, err
	}
	if err := k.s.clearWorkspace(ctx, v.Instance, v.Workspace); err != nil {
		return nil, err
	}
	return v.Reply(), nil
}

// clearWorkspace ends the sessions of a workspace, if the book says that they must end.
func (s *Server) clearWorkspace(ctx context.Context, instance, workspace string) error {
	due, dirty := s.book.DueOf(instance, workspace)
	if !dirty {
		return nil
	}
	return s.endDue(ctx, due)
}

func (s *Server) endDue(ctx context.Context, due grants.Due) error {
	list := s.boxesWhere(func(b *box) bool { return b.at.Instance == due.Instance && b.at.Workspace == due.Workspace })
	if err := s.cutOff(ctx, list, "the admission of its workspace has ended"); err != nil {
		return err
	}
	return s.book.Done(due)
}

// clearDue ends the sessions of workspaces whose grant has expired, and those that an earlier
// process did not get to end.
func (s *Server) clearDue(ctx context.Context) {
	warn := func(ctx context.Context, err error) {
		if err != nil && ctx.Err() == nil {
			s.log.Warn("ending sessions that are no longer admitted (it is tried again)", "error", err)
		}
	}
	list, err := s.book.Due()
	warn(ctx, err)
	for _, due := range list {
		who := [2]string{due.Instance, due.Workspace}
		if _, busy := s.clears.LoadOrStore(who, true); busy {
			continue
		}
		if !s.background(func(ctx context.Context) {
			defer s.clears.Delete(who)
			warn(ctx, s.endDue(ctx, due))
		}) {
			return
		}
	}
}

// clearSoon runs clearDue in the background. However many callers ask, it runs once at a time.
func (s *Server) clearSoon() {
	if !s.clearing.CompareAndSwap(false, true) {
		return
	}
	s.background(func(ctx context.Context) {
		defer s.clearing.Store(false)
		s.clearDue(ctx)
	})
}

// sweep ends the sessions of expired grants, until the server closes.
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
