package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxd/boxd/audit"
)

// replace builds a new box for a session whose box is lost or stopped, on the same
// workspace, and with other mounts if change says so. The op is held.
func (s *session) replace(ctx context.Context, c Caller, change mountDiff) (*use, error) {
	if ctx.Err() != nil { // such as of a session that was halted
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	box := s.box
	s.mu.Unlock()
	if box != nil {
		s.lost(box) // unless that was noticed before
	}
	if err := s.m.audit(c, s.key, audit.Entry{Action: "recreate", Decision: audit.Allow, Reason: "its box is gone"}); err != nil {
		return nil, err
	}
	if err := s.tryReplace(ctx, c, change); err != nil {
		err = s.removedMeanwhile(err)
		s.m.fail(c, s.key, "recreate", err)
		return nil, err
	}
	s.m.counters.recreated.Add(1)
	_ = s.m.audit(c, s.key, audit.Entry{Action: "recreate", Decision: audit.Done}) // it is allowed and done
	s.tellMounts(c, change)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return nil, errRemoved
	}
	u := s.useLocked()
	u.recreated = true
	return u, nil
}

func (s *session) tryReplace(ctx context.Context, c Caller, change mountDiff) error {
	s.mu.Lock()
	old := s.resolved
	s.mu.Unlock()
	// The configuration may have changed since this was allowed.
	want, err := s.m.policy.RecheckMounts(s.key.Tenant, change.apply(old))
	if err != nil {
		return err
	}
	if err := s.clearBox(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.resolved = want
	s.mu.Unlock()
	err = s.build(ctx, c, EventRecreated)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	s.resolved = old
	if s.removing {
		s.state = Stopping // for its own reason
	} else {
		s.state, s.reason = Failed, "building a new box: "+err.Error()
	}
	noted := s.m.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	if e := noted.wait(); e != nil {
		err = errors.Join(err, e)
	}
	s.arm()
	return err
}

// clearBox removes the rest of the last box, and waits until it is known how its managed
// processes ended. After a failure it can be called again. The caller holds the op, and the
// session's state keeps others from using the box.
func (s *session) clearBox(ctx context.Context) error {
	s.forgo()
	s.mu.Lock()
	box, id, list := s.box, s.boxID, s.processesLocked()
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
