package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
)

// Process is a managed process of a session. It is safe for concurrent use. One
// that is started again under the same id is another Process.
type Process struct {
	s  *session
	id string

	// Guarded by s.mu.
	record  processRecord
	live    engine.ManagedProcess // nil until it runs, and after a restart if the box was lost
	ending  bool                  // its end is being recorded
	stopped bool                  // it is to be stopped
	dropped bool

	up   chan struct{} // closed when live is set, or it is known that it never will be
	done chan struct{} // closed when its end is recorded, or it never ran
	gone chan struct{}
}

func newProcess(s *session, r processRecord) *Process {
	return &Process{s: s, id: r.ID, record: r, up: make(chan struct{}), done: make(chan struct{}), gone: make(chan struct{})}
}

// View returns its state. It does not count as use.
func (p *Process) View() ProcessView {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	r := &p.record
	v := ProcessView{
		Session: p.s.key, ID: p.id, State: r.State, PID: r.PID, Args: r.Args, TTY: r.TTY, History: r.History,
		DropOldest: r.DropOldest, StartedAt: r.StartedAt, EndedAt: r.EndedAt, Box: r.Box, Key: r.Key,
	}
	if r.State.Ended() && r.Result != nil {
		v.PID = 0
		v.Signal, v.Verdict, v.Limit = r.Result.Signal, r.Result.Verdict, r.Result.Limit
		if r.Result.ExitCode >= 0 {
			code := r.Result.ExitCode
			v.ExitCode = &code
		}
	}
	return v
}

// Live returns the engine's process with its streams: nil while it starts, and if
// its box was lost before this manager was opened.
func (p *Process) Live() engine.ManagedProcess {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.live
}

// Touch counts as use of the session. It is cheap enough for every message.
func (p *Process) Touch() { p.s.touch() }

// Done is closed when the process has ended and its end is recorded: from then on
// View and Result tell it. All output is in the streams by then.
func (p *Process) Done() <-chan struct{} { return p.done }

// Result is how it ended, after Done.
func (p *Process) Result() engine.Result {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.record.Result == nil {
		return engine.Result{ExitCode: -1}
	}
	return *p.record.Result
}

// Gone is closed when the process is removed or replaced, with its output.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Process returns a managed process, running or ended.
func (m *Manager) Process(key Key, id string) (*Process, error) {
	s, err := m.find(key)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.processes[id]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("process %s of session %q: %w", engine.Quote(id), key.ID, ErrNotFound)
}

// Processes lists the managed processes of a session, sorted by id. It does not
// count as use.
func (m *Manager) Processes(key Key) ([]ProcessView, error) {
	s, err := m.find(key)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	list := s.processesLocked()
	s.mu.Unlock()
	views := make([]ProcessView, len(list))
	for i, p := range list {
		views[i] = p.View()
	}
	return views, nil
}

// processesLocked is sorted by id. s.mu is held.
func (s *session) processesLocked() []*Process {
	list := make([]*Process, 0, len(s.processes))
	for _, p := range s.processes {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *Process) int { return strings.Compare(a.id, b.id) })
	return list
}

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
	end := p.record
	end.State, end.EndedAt, end.Result = ProcessExited, time.Now().Round(0), &res
	switch {
	case res.Verdict == engine.BoxLost:
		end.State = ProcessFailed
	case p.stopped:
		end.State = ProcessStopped
	}
	noted := s.m.store.enqueue(end.put())
	s.mu.Unlock()
	if err := noted.wait(); err != nil {
		s.m.report(s.key, p.id, "recording its end (it is tried again): "+err.Error())
		defer s.m.spawn(p.recordLater)
	}
	s.touch()
	s.mu.Lock()
	p.record = end
	s.running--
	s.mu.Unlock()
	release() // whoever waits for the end may start the next one
	close(p.done)
	s.arm()
	p.tell(end)
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

func (p *Process) tell(end processRecord) {
	s := p.s
	kind := EventProcessExited
	if end.State == ProcessStopped {
		kind = EventProcessStopped
	}
	s.m.counters.verdict(end.Result.Verdict)
	details := map[string]any{"state": end.State, "verdict": end.Result.Verdict, "exit_code": end.Result.ExitCode}
	s.m.tell(Event{Type: kind, Tenant: s.key.Tenant, Session: s.key.ID, Box: end.Box, Process: p.id, Details: details})
	_ = s.m.audit(system, s.key, audit.Entry{Action: string(kind), Process: p.id, Box: end.Box, Decision: audit.Done,
		Reason: string(end.Result.Verdict), Details: details}) // it has ended
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

// forget takes an ended process out of the session, if it is still the one of its id.
func (p *Process) forget(ctx context.Context) error {
	s := p.s
	s.mu.Lock()
	if s.processes[p.id] != p {
		s.mu.Unlock()
		return nil
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
	s := p.s
	s.mu.Lock()
	live, dropped := p.live, p.dropped
	p.dropped = true
	s.mu.Unlock()
	if dropped {
		return
	}
	close(p.gone)
	if live == nil {
		return
	}
	if err := live.Forget(ctx); err != nil && !errors.Is(err, engine.ErrBoxLost) {
		s.m.log.Warn("forgetting a process", "session", s.key.String(), "process", p.id, "error", err)
		s.m.end(live)
	}
}
