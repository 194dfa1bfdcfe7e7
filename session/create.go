package session

import (
	"context"
	"fmt"
	"slices"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/policy"
)

// create makes the session and its first box. The op is held, and given back.
func (s *session) create(ctx context.Context, c Caller, a *asked) (*use, error) {
	defer s.end()
	ctx, stop := s.context(ctx)
	defer stop()
	s.mu.Lock()
	s.resolved = a.resolved
	s.setLifeLocked(a.resolved.MaxLifetime.D())
	s.mu.Unlock()

	err := s.tryCreate(ctx, c, a)
	if err != nil {
		err = s.removedMeanwhile(err)
		// Those who wait get the reason, unless it is this caller's own; then one of
		// them tries again.
		cause := err
		if ctx.Err() != nil {
			cause = nil
		}
		s.m.fail(c, s.key, "create", err)
		s.m.forget(s, cause)
		return nil, err
	}
	s.m.counters.created.Add(1)
	_ = s.m.audit(c, s.key, audit.Entry{Action: "create", Decision: audit.Done}) // it is allowed and done
	s.mu.Lock()
	u := s.useLocked()
	s.mu.Unlock()
	u.created = true
	return u, nil
}

// removedMeanwhile names the reason if it is the session's removal.
func (s *session) removedMeanwhile(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return fmt.Errorf("session %q was removed meanwhile: %w", s.key.ID, ErrState)
	}
	return err
}

func (s *session) tryCreate(ctx context.Context, c Caller, a *asked) (err error) {
	var undo cleanup.Stack
	defer undo.Undo(&err)
	if err := s.m.checkRoom(s.key.Tenant); err != nil {
		s.m.deny(c, s.key, "create", err)
		return err
	}
	release, err := s.m.ledger.Reserve(s.key.Tenant, boxUse(a.resolved))
	if err != nil {
		s.m.deny(c, s.key, "create", err)
		return err
	}
	s.mu.Lock()
	s.release = release
	s.mu.Unlock()
	undo.Push(func() error { s.releaseQuota(); return nil })
	decisions := a.resolved.Decisions
	if a.resolved.Persistent {
		decisions = append(slices.Clone(decisions), s.m.policy.MayStayIdle(a.resolved, 0))
	}
	if err := s.m.auditDecisions(c, s.key, decisions); err != nil {
		return err
	}
	if err := s.m.audit(c, s.key, audit.Entry{Action: "create", Decision: audit.Allow}); err != nil {
		return err
	}
	undo.Push(func() error {
		if err := s.erase(); err != nil {
			s.m.report(s.key, "", "undoing its creation: "+err.Error()) // the next opening does it
		}
		return nil
	})
	if a.resolved.Workspace == "" {
		undo.Push(func() error {
			s.m.workspaces.DropEmpty(s.key.Tenant, s.key.ID) // one from before a lost database stays
			return nil
		})
		undo.Push(func() error { s.undoVolume(); return nil })
	}
	if err := s.build(ctx, c, EventCreated); err != nil {
		return err
	}
	undo.Release()
	return nil
}

// boxUse is what a session of r counts in quotas, as long as it exists.
func boxUse(r policy.Resolved) policy.Use {
	return policy.Use{Sessions: 1, Memory: int64(r.Memory), CPUs: r.CPUs}
}

// releaseQuota gives back all that the session has reserved.
func (s *session) releaseQuota() {
	s.mu.Lock()
	release := s.release
	s.release = nil
	s.mu.Unlock()
	if release != nil {
		release()
	}
	s.measuring.Lock()
	defer s.measuring.Unlock()
	if s.unmeasure != nil {
		s.unmeasure()
		s.unmeasure = nil
	}
}
