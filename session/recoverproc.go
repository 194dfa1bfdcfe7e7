package session

import (
	"reflect"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// restoreProcess returns the process of a record, without its streams.
func restoreProcess(s *session, r processRecord) *Process {
	p := newProcess(s, r)
	p.stopped = r.State == ProcessStopping || r.State == ProcessStopped
	if r.State.Ended() {
		if !r.RestartAt.IsZero() {
			p.reserved = s.m.ledger.Adopt(s.key.Tenant, policy.Use{Processes: 1})
		}
		close(p.up)
		close(p.done)
		return p
	}
	p.release = s.m.ledger.Adopt(s.key.Tenant, policy.Use{Processes: 1})
	return p
}

// settleProcessesLocked matches the process records with the processes in the box, which
// may be nil. It returns functions to start, changes to write, and the processes that have
// ended.
func (s *session) settleProcessesLocked(box engine.LiveBox) (begin []func(), changes []change, ended []*Process) {
	live := map[string]engine.ManagedProcess{}
	if box != nil {
		for _, l := range box.Managed() {
			live[l.Key()] = l
		}
	}
	running := 0
	for id, p := range s.processes {
		// No client has seen a new process that was not started.
		if p.record.State == ProcessStarting && p.record.Replaces != nil && live[p.record.Key] == nil {
			p.release()
			p = restoreProcess(s, *p.record.Replaces)
			s.processes[id] = p
			changes = append(changes, p.record.put())
		}
		p.record.Replaces = nil
		l := live[p.record.Key]
		delete(live, p.record.Key)
		switch {
		case p.record.State.Ended():
			p.live = l // for readers of its output
			if p.record.RestartAt.IsZero() {
				break
			}
			if box == nil {
				p.record.RestartAt, p.record.Kept = time.Time{}, nil
				p.record.Failure += "; not restarted: its box is lost"
				if p.reserved != nil {
					p.reserved()
					p.reserved = nil
				}
				changes = append(changes, p.record.put())
				break
			}
			p.restarted = make(chan struct{})
			begin = append(begin, p.restart)
		case l != nil:
			running++
			before := p.record
			begin = append(begin, p.resume(l)...)
			if !reflect.DeepEqual(before, p.record) {
				changes = append(changes, p.record.put())
			}
		case p.record.State == ProcessStarting: // no client has seen it
			p.release()
			delete(s.processes, id)
			changes = append(changes, change{processBucket, processKey(s.key, id), nil})
		default:
			changes = append(changes, p.markLost())
			ended = append(ended, p)
		}
	}
	s.running = running
	s.countWaitingLocked()
	s.exempt = running+s.waiting > 0 && s.m.policy.MayStayIdle(s.record.Resolved, running+s.waiting).Allowed
	for _, l := range live {
		begin = append(begin, func() {
			s.m.log.Warn("ending a process without a record", "session", s.key.String(), "key", l.Key())
			s.m.endStray(l)
		})
	}
	return begin, changes, ended
}

// resume continues with a process that its box still has, running or ended.
func (p *Process) resume(l engine.ManagedProcess) (begin []func()) {
	s := p.s
	p.live = l
	close(p.up)
	p.record.PID = l.Control().PID()
	p.record.State = ProcessRunning
	if p.stopped {
		p.record.State = ProcessStopping
		begin = append(begin, func() { p.terminate(s.m.options.StopGrace) })
	}
	if p.record.Ready != nil {
		begin = append(begin, p.probe)
	}
	return append(begin, func() { p.watch(p.release) })
}

// markLost marks a process whose box is gone: as stopped if the session is being removed,
// and otherwise as failed, because nobody knows how the process ended.
func (p *Process) markLost() change {
	p.record.State, p.record.EndedAt = ProcessFailed, time.Now().Round(0)
	p.record.Result, p.record.Kept = &engine.Result{Verdict: engine.BoxLost, ExitCode: -1}, nil
	if p.s.removing {
		p.record.State, p.record.Result.Verdict = ProcessStopped, engine.Canceled
	}
	p.release()
	close(p.up)
	close(p.done)
	return p.record.put()
}
