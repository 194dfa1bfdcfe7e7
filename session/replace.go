package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine/spec"
)

// replace builds a new box, with the same workspace, for a session whose box is lost or
// stopped. It makes the change of mounts that a asks for too. The caller holds the op.
func (s *session) replace(ctx context.Context, c Caller, a *asked, change mountDiff) (*use, error) {
	if ctx.Err() != nil { // for example because the session was stopped
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	box := s.box
	s.mu.Unlock()
	if box != nil {
		s.markLost(box) // does nothing if that was noticed before
	}
	if err := s.m.audit(c, s.key, audit.Entry{Action: "recreate", Decision: audit.Allow, Reason: "its box is gone"}); err != nil {
		return nil, err
	}
	undo := func() {}
	var err error
	s.mu.Lock()
	retained, mounts := s.record.Retained != nil, change.attach
	if retained { // it has no volumes any more
		mounts = change.apply(s.record.Resolved).Mounts
	}
	s.mu.Unlock()
	if retained {
		undo, err = s.revive()
	}
	if err == nil {
		var asked []spec.VolumeWish
		if a != nil {
			asked = a.request.Volumes
		}
		err = s.takeVolumes(ctx, c, "volumes", asked, mounts)
	}
	if err == nil {
		err = s.tryReplace(ctx, c, a, change)
	}
	if err != nil && undo != nil {
		undo()
	}
	s.settleVolumes()
	if err != nil {
		err = s.removedMeanwhile(err)
		s.m.noteFailure(c, s.key, "recreate", err)
		return nil, err
	}
	s.m.counters.recreated.Add(1)
	_ = s.m.audit(c, s.key, audit.Entry{Action: "recreate", Decision: audit.Done}) // the box exists even if this fails
	s.reportMounts(c, change)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return nil, errRemoved
	}
	u := s.useLocked()
	u.recreated = true
	return u, nil
}

func (s *session) tryReplace(ctx context.Context, c Caller, a *asked, change mountDiff) error {
	s.mu.Lock()
	old := s.record.Resolved
	s.mu.Unlock()
	// The configuration may have changed since this was allowed.
	want, err := s.m.policy.RecheckMounts(s.key.Tenant, change.apply(old))
	if err != nil {
		return err
	}
	s.m.avoidLinks(s.key.Tenant, want.Mounts)
	if err := s.makeSensitive(c, want.Mounts, a.asksSensitive()); err != nil {
		return err
	}
	if err := s.clearBox(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.record.Resolved = want
	s.mu.Unlock()
	err = s.build(ctx, c, EventRecreated)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	s.record.Resolved = old
	if s.removing {
		s.record.State = Stopping // the removal has set the reason
	} else {
		s.record.State, s.record.Reason = Failed, "building a new box: "+err.Error()
	}
	write := s.m.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	if e := write.wait(); e != nil {
		err = errors.Join(err, e)
	}
	s.arm()
	return err
}

// clearBox removes the remains of the last box, and waits until the ends of its managed
// processes are recorded. It can be called again after a failure. The caller holds the op,
// and the state of the session keeps others from using the box.
func (s *session) clearBox(ctx context.Context) error {
	if !isDone(s.settled) { // the box was not taken over
		s.markProcessesLost()
		close(s.settled)
	}
	s.mu.Lock()
	box, id, list := s.box, s.record.Box, s.processesLocked()
	s.box = nil // Remove releases it even if it fails; Discard removes the rest
	s.mu.Unlock()
	var err error
	if box != nil {
		err = box.Remove(ctx)
	} else {
		err = s.m.engine.Discard(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("removing the old box: %w", causeOf(ctx, err))
	}
	for _, p := range list {
		select {
		case <-p.done:
		case <-ctx.Done():
			return fmt.Errorf("waiting for process %q of the old box: %w", p.id, context.Cause(ctx))
		}
	}
	return nil
}
