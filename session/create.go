package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/policy"
)

// create makes the session and its first box. The caller holds the op, which create
// releases.
func (s *session) create(ctx context.Context, c Caller, a *asked) (*use, error) {
	defer s.unlockOp()
	if err := s.m.throttle.Admit(s.key.Tenant, c.Limits, policy.CreateRate); err != nil {
		s.m.forget(s, nil) // each caller that waits is counted, too
		return nil, err
	}
	ctx, stop := s.callContext(ctx)
	defer stop()
	s.mu.Lock()
	s.record.Resolved = a.resolved
	s.setLifeLocked(a.resolved.MaxLifetime.D())
	s.mu.Unlock()

	err := s.tryCreate(ctx, c, a)
	if err != nil {
		err = s.removedMeanwhile(err)
		// The callers that wait get the same error, unless this caller gave up; then one
		// of them tries again.
		cause := err
		if ctx.Err() != nil {
			cause = nil
		}
		s.m.noteFailure(c, s.key, "create", err)
		s.m.forget(s, cause)
		return nil, err
	}
	s.m.counters.created.Add(1)
	_ = s.m.audit(c, s.key, audit.Entry{Action: "create", Decision: audit.Done, Details: s.createDetails()}) // the session exists even if this fails
	s.mu.Lock()
	u := s.useLocked()
	s.mu.Unlock()
	u.created = true
	return u, nil
}

// removedMeanwhile returns an error that names the removal of the session if that was the
// reason for err, and otherwise err.
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
	release, err := s.m.reserveBox(ctx, s.key.Tenant, a)
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
		if err := s.erase(announcement{}); err != nil {
			s.m.report(s.key, "", "undoing its creation: "+err.Error()) // the next opening completes it
		}
		return nil
	})
	undo.Push(func() error { s.releaseImage(); return nil })
	if err := s.takeImage(ctx, c, a); err != nil {
		return err
	}
	if err := s.takeVolumes(ctx, c, "volumes", a.request.Volumes, a.resolved.Mounts); err != nil { // forget settles
		if errors.Is(err, ErrVolumeInUse) {
			s.m.deny(c, s.key, "create", err)
		}
		return err
	}
	reason := a.asksSensitive()
	if a.resolved.Sensitive {
		reason = cmp.Or(reason, fmt.Sprintf("its profile %q is sensitive", a.resolved.Profile))
	}
	if a.resolved.OwnWorkspace() {
		fresh := s.m.workspaces.IsMissing(s.key.Tenant, s.key.ID)
		s.mu.Lock()
		s.record.Fresh = fresh
		s.mu.Unlock()
		if !fresh || s.m.volumes.isKept(volumeOf(a.resolved)) {
			reason = "its workspace was there before: " + lostRecord
		}
	}
	if err := s.makeSensitive(c, a.resolved.Mounts, reason); err != nil {
		return err
	}
	if a.resolved.Workspace == "" {
		undo.Push(func() error {
			s.m.workspaces.DropEmpty(s.key.Tenant, s.key.ID) // the content of one from before a lost database stays
			return nil
		})
		undo.Push(func() error {
			s.mu.Lock()
			name, box := volumeOf(s.record.Resolved), s.record.Box
			s.mu.Unlock()
			s.m.dropNewVolume(name, box)
			return nil
		})
	}
	if err := s.publishPorts(c); err != nil {
		return err
	}
	undo.Push(func() error { s.unpublishPorts("the session could not be created"); return nil })
	if err := s.build(ctx, c, EventCreated); err != nil {
		return err
	}
	undo.Release()
	return nil
}

// reserveBox reserves what a session of a counts. A run waits for a while for runs that have been answered: their
// clients take them for ended, but they count until they have been removed.
func (m *Manager) reserveBox(ctx context.Context, tenant string, a *asked) (release func(), err error) {
	patience, cancel := context.WithTimeout(ctx, tidyPatience)
	defer cancel()
	for {
		under, ended := m.tidied.look()
		release, err := m.ledger.Reserve(tenant, boxUse(a.resolved))
		full, ok := errors.AsType[*policy.QuotaError](err)
		if !ok || !a.once || len(under) == 0 || full.Tenant != "" && under[full.Tenant] == 0 {
			return release, err
		}
		select {
		case <-ended:
		case <-patience.Done():
			return nil, err
		}
	}
}

// boxUse returns what a session of r counts in quotas while it exists.
func boxUse(r policy.Resolved) policy.Use {
	return policy.Use{Sessions: 1, Memory: r.Memory, CPUs: r.CPUs, Ports: int64(len(r.Publish))}
}

// releaseQuota returns everything that the session has reserved.
func (s *session) releaseQuota() {
	s.mu.Lock()
	release := s.release
	s.release = nil
	s.mu.Unlock()
	if release != nil {
		release()
	}
	s.usage.mu.Lock()
	defer s.usage.mu.Unlock()
	if s.usage.release != nil {
		s.usage.release()
		s.usage.release = nil
	}
}
