package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
)

// watch waits for the end of the process and records it. release gives back what it
// counts in quotas.
func (p *Process) watch(release func()) {
	defer release()
	live := p.Live()
	select {
	case <-live.Done():
		p.finish(live.Result(), release)
	case <-p.s.m.ctx.Done(): // the successor will see it
	}
}

// finish records how the process ended and then shows it.
func (p *Process) finish(res engine.Result, release func()) {
	s := p.s
	s.mu.Lock()
	p.ending = true
	res = overDisk(res, p.overDisk)
	end := p.record
	end.State, end.EndedAt, end.Result = ProcessExited, time.Now().Round(0), &res
	switch {
	case s.removing: // which took its box away: that is no accident
		end.State = ProcessStopped
		if res.Verdict == engine.BoxLost {
			res.Verdict = engine.Canceled
		}
	case res.Verdict == engine.BoxLost:
		end.State = ProcessFailed
	case p.stopped:
		end.State = ProcessStopped
	}
	noted := s.m.store.enqueue(end.put())
	s.mu.Unlock()
	if err := noted.wait(); err != nil {
		s.m.report(s.key, p.id, "recording its end (it will be retried): "+err.Error())
		defer s.m.spawn(p.recordLater)
	}
	s.touch()
	e := p.endEvent(end)
	s.m.counters.verdict(res.Verdict)
	_ = s.m.audit(system, s.key, audit.Entry{Action: string(e.Type), Process: p.id, Box: end.Box, Decision: audit.Done,
		Reason: string(res.Verdict), Details: e.Details, Ends: true}) // it has ended
	release() // a subscriber may start the next one at once
	s.mu.Lock()
	p.record = end
	s.running--
	s.m.events.publish(e)
	s.mu.Unlock()
	s.m.logEvent(e)
	close(p.done)
	s.arm()
	s.prune(s.m.ctx)
}

// recordLater records the end as soon as that can be done. Until then a successor finds
// it in the box, unless that is lost.
func (p *Process) recordLater() {
	s := p.s
	s.m.retry(func(context.Context) error {
		s.mu.Lock()
		if s.processes[p.id] != p || s.removing {
			s.mu.Unlock()
			return nil
		}
		noted := s.m.store.enqueue(p.record.put())
		s.mu.Unlock()
		return noted.wait()
	})
}

// endEvent is the event of the end of p.
func (p *Process) endEvent(end processRecord) Event {
	kind := EventProcessExited
	if end.State == ProcessStopped {
		kind = EventProcessStopped
	}
	details := endDetails(*end.Result)
	details["state"] = end.State
	return Event{Type: kind, Tenant: p.s.key.Tenant, Session: p.s.key.ID, Box: end.Box, Process: p.id, Details: details}
}

// tell reports the end of a process whose record shows it already.
func (p *Process) tell(end processRecord) {
	e := p.endEvent(end)
	p.s.m.counters.verdict(end.Result.Verdict)
	p.s.m.tell(e)
	_ = p.s.m.audit(system, p.s.key, audit.Entry{Action: string(e.Type), Process: p.id, Box: end.Box, Decision: audit.Done,
		Reason: string(end.Result.Verdict), Details: e.Details, Ends: true})
}

// prune forgets the ended processes that are more than the session keeps, the oldest
// ones first.
func (s *session) prune(ctx context.Context) {
	s.mu.Lock()
	var ended []*Process
	for _, p := range s.processes {
		if p.record.State.Ended() {
			ended = append(ended, p)
		}
	}
	s.mu.Unlock()
	if len(ended) <= s.m.options.KeepEnded {
		return
	}
	slices.SortFunc(ended, func(a, b *Process) int { return a.record.EndedAt.Compare(b.record.EndedAt) })
	for _, p := range ended[:len(ended)-s.m.options.KeepEnded] {
		if err := p.forget(ctx); err != nil && !errors.Is(err, ErrState) {
			s.m.report(s.key, p.id, "forgetting it: "+err.Error())
		}
	}
}

// forget takes an ended process out of the session, if it is still there.
func (p *Process) forget(ctx context.Context) error {
	s := p.s
	s.mu.Lock()
	if next := s.processes[p.id]; next != p {
		var replaced []change
		if next != nil && next.record.State == ProcessStarting && !next.launched {
			replaced = append(replaced, next.record.put()) // nobody, also if it cannot be started
		}
		noted, dropped := s.m.store.enqueue(replaced...), p.dropped
		p.dropped = true
		s.mu.Unlock()
		if !dropped {
			p.letGo(ctx)
		}
		return noted.wait() // also for what the next one has handed over
	}
	if !p.record.State.Ended() || s.removing {
		s.mu.Unlock()
		return fmt.Errorf("process %q has not ended: %w", p.id, ErrState)
	}
	delete(s.processes, p.id)
	noted := s.m.store.enqueue(change{processBucket, processKey(s.key, p.id), nil})
	s.mu.Unlock()
	if err := noted.wait(); err != nil {
		s.mu.Lock()
		if s.processes[p.id] == nil {
			s.processes[p.id] = p
		}
		s.mu.Unlock()
		return err
	}
	p.drop(ctx)
	return nil
}

// drop gives back what the box keeps of a process that has ended and is on no record
// any more. If that fails it is tried again, as long as the manager is open: until then
// the box has an unknown process, which the next opening forgets.
func (p *Process) drop(ctx context.Context) {
	p.s.mu.Lock()
	dropped := p.dropped
	p.dropped = true
	p.s.mu.Unlock()
	if !dropped {
		p.letGo(ctx)
	}
}

// letGo is the rest of drop, for the one who has set dropped.
func (p *Process) letGo(ctx context.Context) {
	s := p.s
	s.mu.Lock()
	live := p.live
	s.mu.Unlock()
	close(p.gone)
	if live == nil {
		return
	}
	if err := live.Forget(ctx); err != nil && !errors.Is(err, engine.ErrBoxLost) {
		s.m.log.Warn("forgetting a process", "session", s.key.String(), "process", p.id, "error", err)
		s.m.end(live)
	}
}
