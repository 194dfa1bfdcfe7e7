package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
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
		s.lost(box) // if nobody has noticed yet
	}
	if err := s.m.audit(c, s.key, audit.Entry{Action: "recreate", Decision: audit.Allow, Reason: "its box is gone"}); err != nil {
		return nil, err
	}
	if err := s.tryReplace(ctx, change); err != nil {
		err = s.removedMeanwhile(err)
		s.m.fail(c, s.key, "recreate", err)
		return nil, err
	}
	s.m.counters.recreated.Add(1)
	s.publish(EventRecreated, c, map[string]any{"generation": s.view().Generation})
	_ = s.m.audit(c, s.key, audit.Entry{Action: "recreate", Decision: audit.Done}) // it is allowed and done
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return nil, errRemoved
	}
	u := s.useLocked()
	u.recreated = true
	return u, nil
}

func (s *session) tryReplace(ctx context.Context, change mountDiff) error {
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
	err = s.build(ctx)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	s.resolved, s.state, s.reason = old, Failed, "building a new box: "+err.Error()
	if s.removing {
		s.state = Stopping
	}
	noted := s.m.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	if e := noted.wait(); e != nil {
		err = errors.Join(err, e)
	}
	s.arm()
	return err
}

// clearBox takes apart what is left of the last box, and waits until it is known how
// its managed processes ended. It can be called again after it failed. The op is held,
// and the state says that nobody can use the box.
func (s *session) clearBox(ctx context.Context) error {
	s.mu.Lock()
	box, id, list := s.box, s.boxID, s.processesLocked()
	s.box = nil // a Remove lets go of it even if it fails: what is left is for Discard
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

// watch looks after box until it is gone or the manager closes.
func (s *session) watch(box engine.LiveBox) {
	events := box.Events()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			s.limit(e)
		case <-box.Done():
			s.lastLimits(events)
			s.lost(box)
			s.sweepLost(box)
			return
		case <-s.m.ctx.Done():
			return
		}
	}
}

// lastLimits publishes what a box that is gone has left of events, which often say why.
func (s *session) lastLimits(events <-chan engine.Event) {
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			s.limit(e)
		default:
			return
		}
	}
}

// limit publishes a limit that the box ran into.
func (s *session) limit(e engine.Event) {
	kind := EventOOM
	if e.Kind == engine.EventPIDs {
		kind = EventPIDsLimit
	}
	s.publish(kind, system, map[string]any{"count": e.Count})
}

// lost marks the session as failed because PID 1 of box is gone, unless that is known.
func (s *session) lost(box engine.LiveBox) {
	s.mu.Lock()
	if s.box != box || s.state != Running || s.removing || !isDone(box.Done()) {
		s.mu.Unlock()
		return
	}
	s.state, s.reason = Failed, "PID 1 of box "+s.boxID+" is gone"
	reason := s.reason
	noted := s.m.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	s.tellLost(reason)
	if err := noted.wait(); err != nil { // the successor finds it lost as well
		s.m.report(s.key, "", err.Error())
	}
}

func (s *session) tellLost(reason string) {
	s.m.counters.lost.Add(1)
	s.m.report(s.key, "", reason)
	s.publish(EventState, system, map[string]any{"state": Failed, "reason": reason})
	_ = s.m.audit(system, s.key, audit.Entry{Action: "box-lost", Decision: audit.Failed, Reason: reason})
}

// sweepLost takes apart a lost box that nobody replaces at once.
func (s *session) sweepLost(box engine.LiveBox) {
	s.m.retry(func(ctx context.Context) error {
		if err := s.begin(ctx); err != nil {
			return nil // closing
		}
		defer s.end()
		s.mu.Lock()
		mine := s.boxID == box.ID() && s.state == Failed && !s.removing // nobody has built another one
		s.mu.Unlock()
		if !mine {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
		defer cancel()
		return s.clearBox(ctx)
	})
}

// sweepTimeout bounds how long a use of the session waits for the clean-up of its
// lost box, which it does itself if it must.
const sweepTimeout = 5 * time.Second
