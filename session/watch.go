package session

import (
	"context"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
)

// watch handles the events of box until the box is gone or the manager closes.
func (s *session) watch(box engine.LiveBox) {
	events := box.Events()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			s.publishLimit(box, e)
		case <-box.Done():
			if f := s.m.boxEnds.Load(); f != nil {
				(*f)(s.key)
			}
			for pending := true; pending; { // the last events often say why the box ended
				select {
				case e, ok := <-events:
					if pending = ok; ok {
						s.publishLimit(box, e)
					}
				default:
					pending = false
				}
			}
			s.markLost(box)
			s.sweepLost(box)
			return
		case <-s.m.ctx.Done():
			return
		}
	}
}

// publishLimit publishes that the box has reached a limit.
func (s *session) publishLimit(box engine.LiveBox, e engine.Event) {
	kind := EventOOM
	if e.Kind == engine.EventPIDs {
		kind = EventPIDsLimit
	}
	s.publish(kind, system, box.ID(), map[string]any{"count": e.Count})
}

// markLost marks the session as failed because PID 1 of box is gone, unless that is known.
func (s *session) markLost(box engine.LiveBox) {
	s.mu.Lock()
	if s.box != box || s.record.State != Running || s.removing || s.gone || !isDone(box.Done()) {
		s.mu.Unlock()
		return
	}
	s.closeNetworkLocked()
	s.record.State, s.record.Reason = Failed, "PID 1 of box "+s.record.Box+" is gone"
	lost := s.failedLocked()
	write := s.m.store.enqueue(s.putLocked()...)
	s.m.events.publish(lost)
	s.mu.Unlock()
	s.reportLost(lost)
	s.count(box)
	if err := write.wait(); err != nil { // a successor notices the loss as well
		s.m.report(s.key, "", err.Error())
	}
}

// failedLocked returns the event of a lost box.
func (s *session) failedLocked() Event {
	return s.eventLocked(EventState, system, map[string]any{"state": Failed, "reason": s.record.Reason})
}

// reportLost reports the loss of a box to the logs. The caller holds no lock.
func (s *session) reportLost(lost Event) {
	reason := lost.Details["reason"].(string)
	s.m.counters.lost.Add(1)
	s.m.logEvent(lost)
	s.m.report(s.key, "", reason)
	_ = s.m.audit(system, s.key, audit.Entry{Action: "box-lost", Box: lost.Box, Decision: audit.Failed, Reason: reason})
}

// sweepLost removes a lost box, unless a caller replaces it first.
func (s *session) sweepLost(box engine.LiveBox) {
	s.m.retry(func(ctx context.Context) error {
		if err := s.lockOp(ctx); err != nil {
			return nil // closing
		}
		defer s.unlockOp()
		s.mu.Lock()
		mine := s.record.Box == box.ID() && s.record.State == Failed && !s.removing // false if it was replaced
		s.mu.Unlock()
		if !mine {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
		defer cancel()
		return s.clearBox(ctx)
	})
}

// sweepTimeout bounds how long a use of the session waits for the clean-up of its lost box,
// which the use repeats if necessary.
const sweepTimeout = 5 * time.Second
