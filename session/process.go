package session

import (
	"fmt"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Process is a managed process of a session. It is safe for concurrent use. A process that
// is started again under the same ID is another Process.
type Process struct {
	s  *session
	id string

	// Guarded by s.mu.
	record   processRecord
	live     engine.ManagedProcess // nil until it runs, and after a restart if the box was lost
	ending   bool                  // its end is being recorded
	stopped  bool                  // a stop was requested
	cleared  bool                  // it was killed because its box is to be removed
	launched bool                  // the record that it runs was handed to the store
	dropped  bool                  // it was removed or replaced
	overDisk error                 // why the guard ended it; nil: the guard did not
	failure  string                // why its probes gave it up
	refused  refusals              // before it started
	// untold is what the outbox is to have about its end and the database has not yet: whatever writes over
	// the record of p, or deletes it, stores that as well.
	untold announcement
	// successor is the process as which it was started again. restarted is closed when that,
	// or the decision against it, is done; nil: it does not wait for a restart.
	successor *Process
	restarted chan struct{}
	halted    bool // its restart is being cancelled
	// reserved returns the reservation in quotas of a process that waits for its restart. It is nil
	// while the next process has it.
	reserved func()

	release func() // returns its reservation in quotas; only of a running process found at Open

	up   chan struct{} // closed when live is set, or never will be
	done chan struct{} // closed when its end is recorded, or it never ran
	gone chan struct{} // closed when it was removed or replaced

	ready  chan struct{} // closed when it is ready for the first time
	probed chan struct{} // closed when probe has ended
}

func newProcess(s *session, r processRecord) *Process {
	p := &Process{s: s, id: r.ID, record: r, up: make(chan struct{}), done: make(chan struct{}), gone: make(chan struct{})}
	if r.Ready != nil {
		p.ready, p.probed = make(chan struct{}), make(chan struct{})
		if r.Readiness != "" {
			close(p.ready)
		}
	}
	return p
}

// View returns the state of the process. It does not count as use.
func (p *Process) View() ProcessView {
	p.s.mu.Lock()
	ended, before := p.record.State.Ended(), p.refused
	p.s.mu.Unlock()
	var denied []Denial
	if !ended {
		denied = mostDenied(p.s.refusedSince(before))
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.viewLocked(&p.record, denied)
}

// viewLocked returns p as r records it; denied counts unless it has ended. The caller holds s.mu.
func (p *Process) viewLocked(r *processRecord, denied []Denial) ProcessView {
	v := ProcessView{
		Session: p.s.key, ID: p.id, State: r.shownState(), PID: r.PID, Args: r.Args, TTY: r.TTY, ProcessSettings: r.ProcessSettings,
		StartedAt: r.StartedAt, EndedAt: r.EndedAt, Box: r.Box, Key: r.Key,
		ReadyAt: r.ReadyAt, Restarts: r.Restarts, RestartAt: r.RestartAt, Failure: r.Failure, FailureOutput: r.FailureOutput,
		Denied: denied,
	}
	if r.State.Ended() {
		v.Denied = r.Denied
	}
	if r.State.Ended() && r.Result != nil {
		v.PID = 0
		v.ExitCode, v.Signal, v.Verdict, v.Limit = r.Result.Exit(), r.Result.Signal, r.Result.Verdict, r.Result.Limit
	}
	return v
}

// Live returns the engine's process with its streams. It is nil while the process starts,
// and if its box was lost before this manager was opened.
func (p *Process) Live() engine.ManagedProcess {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.live
}

// Touch counts as use of the session. It is cheap enough to be called for every message.
func (p *Process) Touch() { p.s.touch() }

// Done is closed when the process has ended and its end is recorded: from then on View and
// Result report it, and the streams have all output.
func (p *Process) Done() <-chan struct{} { return p.done }

// Result reports how the process ended. It is valid after Done.
func (p *Process) Result() engine.Result {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.record.Result == nil {
		return engine.Result{ExitCode: -1}
	}
	return *p.record.Result
}

// Gone is closed when the process, with its output, was removed or replaced.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Process returns a managed process, running or ended.
func (m *Manager) Process(key Key, id string) (*Process, error) {
	s, err := m.findSettled(key)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.processes[id]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("process %s of session %q: %w", spec.Quote(id), key.ID, ErrNotFound)
}

// Processes lists the managed processes of a session, sorted by ID. It does not count as
// use.
func (m *Manager) Processes(key Key) ([]ProcessView, error) {
	s, err := m.findSettled(key)
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

// processesLocked returns the processes, sorted by ID. The caller holds s.mu.
func (s *session) processesLocked() []*Process {
	list := make([]*Process, 0, len(s.processes))
	for _, p := range s.processes {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *Process) int { return strings.Compare(a.id, b.id) })
	return list
}
