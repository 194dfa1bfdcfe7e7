package session

import (
	"context"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// A session with the setting retain stays in the state Stopped when a TTL ends it, without a
// box, processes and named volumes, and is removed later. Its next use revives it: that
// builds a new box on the workspace, and the lifetime begins anew.

// retention says how long a session that has ended stays.
type retention struct {
	Until time.Time `json:"until,omitzero"` // zero: forever
}

// retainLocked returns how long the session is to stay if a TTL ends it now; nil: not at all.
// Without a workspace that boxd keeps there is nothing to stay for. The caller holds s.mu.
func (s *session) retainLocked() *retention {
	r := s.record.Resolved
	d, err := spec.ParseRetain(r.Retain)
	switch {
	case err != nil || d == 0 || !r.OwnWorkspace() || s.record.Retained != nil:
		return nil
	case d == spec.Forever:
		return &retention{}
	}
	return &retention{Until: time.Now().Add(d).Round(0)}
}

// retire makes the session one that stays for its workspace. Its box is gone. The caller holds
// the op. If somebody has asked for the removal of the session meanwhile, retire does nothing and
// returns false.
func (s *session) retire(ctx context.Context, r removal) (bool, error) {
	s.mu.Lock()
	list := s.processesLocked()
	rec := *s.recordLocked()
	if rec.Retained == nil {
		s.mu.Unlock()
		return false, nil
	}
	rec.State, rec.Reason, rec.LifeLeft, rec.Expired = Stopped, r.reason+": its workspace is kept", 0, false
	e := s.eventLocked(EventExpired, r.caller, map[string]any{"reason": r.reason, "retained": rec.Resolved.Retain})
	told := s.m.announce(Ending{Event: e})
	changes := append(told.changes(), rec.put())
	for _, p := range list {
		changes = append(changes, change{processBucket, processKey(s.key, p.id), nil})
		changes = append(changes, p.untold.changes()...)
	}
	s.erased, s.retired = true, true // no other record of it is written
	write := s.m.store.enqueue(changes...)
	s.mu.Unlock()
	if err := write.wait(); err != nil {
		s.mu.Lock()
		s.erased, s.retired = false, false
		s.mu.Unlock()
		return false, err
	}
	told.stored()
	for _, p := range list {
		p.noteTold()
		p.drop(ctx)
	}
	next := s.m.retained(rec)
	s.usage.mu.Lock()
	next.usage.release, s.usage.release = s.usage.release, nil
	s.usage.mu.Unlock()
	s.mu.Lock()
	next.workspaceBytes = s.workspaceBytes
	s.mu.Unlock()
	s.releaseQuota()
	s.m.counters.expired.Add(1)
	// The session has ended, so a failure to audit that is only reported.
	_ = s.m.audit(r.caller, s.key, audit.Entry{Action: string(EventExpired), Decision: audit.Done, Reason: rec.Reason, Ends: true, Details: map[string]any{"retain": rec.Resolved.Retain}})
	s.m.succeed(s, next, nil, e)
	next.arm()
	return true, nil
}

// retained returns a session that stays for its workspace. It counts as a session in the
// ledger, and what its limits allow does not.
func (m *Manager) retained(rec sessionRecord) *session {
	s := newSession(m, rec.key())
	s.record, s.made = rec, true
	s.release = m.ledger.Adopt(rec.Tenant, policy.Use{Sessions: 1})
	s.bornAt = m.now()
	return s
}

// revive makes a session that stays for its workspace an ordinary one, whose lifetime begins
// now; undo takes that back. The caller holds the op, and builds a box.
func (s *session) revive() (undo func(), err error) {
	s.mu.Lock()
	rec, life, born := s.record, s.lifeEnd, s.bornAt
	s.mu.Unlock()
	full := boxUse(rec.Resolved)
	full.Sessions = 0 // it counts already
	release, err := s.m.ledger.Reserve(s.key.Tenant, full)
	if err != nil {
		return nil, err
	}
	s.touch()
	s.mu.Lock()
	old := s.release
	s.release = func() { release(); old() }
	s.record.Retained, s.record.CreatedAt = nil, time.Now().Round(0)
	s.bornAt = s.m.now()
	s.setLifeLocked(rec.Resolved.MaxLifetime.D())
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.record.Retained, s.record.CreatedAt, s.lifeEnd, s.bornAt = rec.Retained, rec.CreatedAt, life, born
		s.record.State, s.record.Reason = rec.State, rec.Reason
		if s.release != nil {
			s.release = old
		}
		write := s.m.store.enqueue(s.putLocked()...)
		s.mu.Unlock()
		release()
		if err := write.wait(); err != nil { // a successor keeps the session until its idle TTL ends it again
			s.m.report(s.key, "", err.Error())
		}
	}, nil
}
