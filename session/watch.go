package session

import (
	"context"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
)

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
			s.limit(box, e)
		case <-box.Done():
			s.lastLimits(box, events)
			s.lost(box)
			s.sweepLost(box)
			return
		case <-s.m.ctx.Done():
			return
		}
	}
}

// lastLimits publishes what a box that is gone has left of events, which often say why.
func (s *session) lastLimits(box engine.LiveBox, events <-chan engine.Event) {
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			s.limit(box, e)
		default:
			return
		}
	}
}

// limit publishes a limit that the box ran into.
func (s *session) limit(box engine.LiveBox, e engine.Event) {
	kind := EventOOM
	if e.Kind == engine.EventPIDs {
		kind = EventPIDsLimit
	}
	s.m.tell(s.event(kind, system, box.ID(), map[string]any{"count": e.Count}))
}

// lost marks the session as failed because PID 1 of box is gone, unless that is known.
func (s *session) lost(box engine.LiveBox) {
	s.mu.Lock()
	if s.box != box || s.state != Running || s.removing || s.gone || !isDone(box.Done()) {
		s.mu.Unlock()
		return
	}
	s.state, s.reason = Failed, "PID 1 of box "+s.boxID+" is gone"
	told := s.failedLocked()
	noted := s.m.store.enqueue(s.recordLocked().put())
	s.m.events.publish(told)
	s.mu.Unlock()
	s.reportLost(told)
	if err := noted.wait(); err != nil { // the successor finds it lost as well
		s.m.report(s.key, "", err.Error())
	}
}

// failedLocked is what subscribers are told of a lost box.
func (s *session) failedLocked() Event {
	return s.event(EventState, system, s.boxID, map[string]any{"state": Failed, "reason": s.reason})
}

// reportLost tells the others. No lock is held.
func (s *session) reportLost(told Event) {
	reason := told.Details["reason"].(string)
	s.m.counters.lost.Add(1)
	s.m.logEvent(told)
	s.m.report(s.key, "", reason)
	_ = s.m.audit(system, s.key, audit.Entry{Action: "box-lost", Box: told.Box, Decision: audit.Failed, Reason: reason})
}

// sweepLost removes a lost box, unless a caller replaces it first.
func (s *session) sweepLost(box engine.LiveBox) {
	s.m.retry(func(ctx context.Context) error {
		if err := s.begin(ctx); err != nil {
			return nil // closing
		}
		defer s.end()
		s.mu.Lock()
		mine := s.boxID == box.ID() && s.state == Failed && !s.removing // it was not replaced
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
