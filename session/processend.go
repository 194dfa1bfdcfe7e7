package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// watch waits for the end of the process and records it. release returns its reservation in
// quotas.
func (p *Process) watch(release func()) {
	live := p.Live()
	select {
	case <-live.Done():
		if p.probed != nil { // it may find that the process was ready
			select {
			case <-p.probed:
			case <-time.After(probeTimeout): // the engine does not end its command
			}
		}
		p.recordEnd(live.Result(), release)
	case <-p.s.m.ctx.Done(): // the successor records it
		release()
	}
}

// recordEnd records how the process ended, and then publishes it. It returns the reservation, or
// keeps it for a restart.
func (p *Process) recordEnd(res engine.Result, release func()) {
	s := p.s
	s.mu.Lock()
	p.ending = true
	live := p.live
	if p.cleared && res.Signal == syscall.SIGKILL { // also a process that was short of memory before
		res.Verdict, res.Signal, res.Limit = engine.BoxLost, 0, ""
	}
	failure, refused := p.failureOf(diskQuotaResult(res, p.overDisk)), p.refused
	s.mu.Unlock()
	denied := mostDenied(s.refusedSince(refused))
	var output string
	if failure != "" {
		output = lastOutput(live.Stdio())
	}
	s.mu.Lock()
	res = diskQuotaResult(res, p.overDisk)
	end := p.record
	end.State, end.EndedAt, end.Result = ProcessExited, time.Now().Round(0), &res
	end.Denied = denied
	switch {
	case s.removing: // the removal ended its box, so the loss is no failure
		end.State = ProcessStopped
		if res.Verdict == engine.BoxLost {
			res.Verdict = engine.Canceled
		}
	case res.Verdict == engine.BoxLost:
		end.State = ProcessFailed
	case p.stopped:
		end.State = ProcessStopped
	case p.failure != "":
		end.State = ProcessFailed
	}
	if end.Failure, end.FailureOutput = failure, output; failure != "" && !s.removing {
		p.planRestart(&end)
	}
	again := !end.RestartAt.IsZero()
	if !again {
		end.Kept = nil
	}
	s.mu.Unlock()
	p.remember(end) // first, so that a successor repeats it rather than leaves it out
	told := s.m.announce(p.endingAs(end))
	s.mu.Lock()
	p.untold = told
	write := s.m.store.enqueue(append(told.changes(), end.put())...)
	s.mu.Unlock()
	if err := write.wait(); err != nil {
		s.m.report(s.key, p.id, "recording its end (it will be retried): "+err.Error())
		defer s.m.spawn(p.recordLater)
	} else {
		p.noteTold()
	}
	e := p.noteEnd(end)
	if !again {
		s.touch()
		release() // before publishing, because a subscriber may start the next process at once
	}
	s.mu.Lock()
	p.record = end
	s.running--
	if again {
		p.restarted, p.reserved = make(chan struct{}), release
		s.countWaitingLocked()
	}
	s.m.events.publish(e)
	s.mu.Unlock()
	s.m.logEvent(e)
	close(p.done)
	if again {
		s.m.spawn(p.restart)
	}
	s.arm()
	s.prune(s.m.ctx)
}

// recordLater records the end as soon as that is possible. Until then a successor learns it
// from the box, unless that is lost.
//
// The message about the end is not stored without the record: a successor that finds only the message tells
// of the end again, under another ID.
func (p *Process) recordLater() {
	s := p.s
	s.m.retry(func(context.Context) error {
		s.mu.Lock()
		changes := p.untold.changes()
		if s.erased && len(changes) > 0 {
			s.mu.Unlock()
			return errAgain // erase stores it, or fails
		}
		if s.processes[p.id] == p && !s.erased {
			changes = append(changes, p.record.put())
		}
		write := s.m.store.enqueue(changes...)
		s.mu.Unlock()
		err := write.wait()
		if err == nil {
			p.noteTold()
		}
		return err
	})
}

// endEvent returns the event about the end of p.
func (p *Process) endEvent(end processRecord) Event {
	kind := EventProcessExited
	if end.State == ProcessStopped {
		kind = EventProcessStopped
	}
	details := endDetails(*end.Result)
	details["state"] = end.State
	if end.Failure != "" {
		details["failure"] = cut(end.Failure)
	}
	if !end.RestartAt.IsZero() {
		details["restart_at"] = end.RestartAt
	}
	if len(end.Denied) > 0 {
		details["denied"] = end.Denied
	}
	return p.event(kind, system, end.Box, details)
}

// noteEnd counts and audits the end of p, and returns its event.
func (p *Process) noteEnd(end processRecord) Event {
	e := p.endEvent(end)
	p.s.m.counters.verdict(end.Result.Verdict)
	p.s.lookSoon()
	// The process has ended, so a failure to audit that is only reported.
	_ = p.s.m.audit(system, p.s.key, audit.Entry{Action: string(e.Type), Process: p.id, Box: end.Box, Decision: audit.Done,
		Reason: string(end.Result.Verdict), Details: e.Details, Ends: true})
	return e
}

// event returns an event about p in box, with the labels of session and process. The caller holds
// no lock.
func (p *Process) event(t EventType, c Caller, box string, details map[string]any) Event {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	e := p.s.eventLocked(t, c, details)
	e.Process, e.Box = p.id, box
	if own := p.record.Labels; len(own) > 0 {
		e.Labels = maps.Clone(e.Labels)
		if e.Labels == nil {
			e.Labels = spec.Labels{}
		}
		maps.Copy(e.Labels, own)
	}
	return e
}

// prune forgets the oldest ended processes, so that the session keeps no more than
// KeepEnded.
func (s *session) prune(ctx context.Context) {
	s.mu.Lock()
	var ended []*Process
	for _, p := range s.processes {
		if p.record.State.Ended() && p.record.RestartAt.IsZero() {
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

// forget removes an ended process from the session, if it is still there.
func (p *Process) forget(ctx context.Context) error {
	s := p.s
	s.mu.Lock()
	if next := s.processes[p.id]; next != p {
		var replaced []change
		if next != nil && next.record.State == ProcessStarting && !next.launched {
			replaced = append(replaced, next.record.put()) // the record no longer restores p if the new process cannot be started
		}
		write, dropped := s.m.store.enqueue(replaced...), p.dropped
		p.dropped = true
		s.mu.Unlock()
		if !dropped {
			p.letGo(ctx)
		}
		return write.wait() // waits for earlier changes as well, such as those of the new process
	}
	if !p.record.State.Ended() || s.removing {
		s.mu.Unlock()
		return fmt.Errorf("process %q has not ended: %w", p.id, ErrState)
	}
	delete(s.processes, p.id)
	s.countWaitingLocked()
	write := s.m.store.enqueue(append(p.untold.changes(), change{processBucket, processKey(s.key, p.id), nil})...)
	s.mu.Unlock()
	if err := write.wait(); err != nil {
		s.mu.Lock()
		if s.processes[p.id] == nil {
			s.processes[p.id] = p
			s.countWaitingLocked()
		}
		s.mu.Unlock()
		return err
	}
	p.noteTold()
	p.drop(ctx)
	return nil
}

// drop releases what the box keeps of a process that has ended and has no record any more.
// If that fails it is retried while the manager is open; afterwards the next opening
// forgets the unknown process.
func (p *Process) drop(ctx context.Context) {
	p.s.mu.Lock()
	dropped := p.dropped
	p.dropped = true
	p.s.mu.Unlock()
	if !dropped {
		p.letGo(ctx)
	}
}

// letGo is the second half of drop, for a caller that has set dropped itself.
func (p *Process) letGo(ctx context.Context) {
	p.returnReservation()
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
		s.m.endStray(live)
	}
}
