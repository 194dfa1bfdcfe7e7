package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// Start starts a managed process in session key and returns once it runs. r is as in Exec.
// If a process with this ID is running, the error is ErrExists. The ID of an ended process
// can be used again: its old output is dropped once the new process runs.
func (m *Manager) Start(ctx context.Context, c Caller, key Key, r *policy.Request, spec ProcessSpec) (ProcessView, error) {
	if err := policy.ValidateProcessID(spec.ID); err != nil {
		return ProcessView{}, err
	}
	if err := spec.Labels.Validate("labels"); err != nil {
		return ProcessView{}, err
	}
	spec.History = cmp.Or(spec.History, m.options.History)
	if spec.Restart == "no" {
		spec.Restart = ""
	}
	if err := spec.validateSupervision(); err != nil {
		return ProcessView{}, err
	}
	// Check the command before creating a session for it.
	checked := spec
	if len(spec.Args) == 0 {
		checked.Args = defaultProgram
	}
	if err := managed(checked, "k", ground{}).Validate(); err != nil {
		return ProcessView{}, err
	}
	key, a, err := m.resolve(c, key, r)
	if err != nil {
		return ProcessView{}, err
	}
	if a != nil && a.resolved.Image == engine.HostImage {
		if _, _, err := (ground{Resolved: a.resolved}).program(spec.Args, ""); err != nil {
			return ProcessView{}, err
		}
	}
	if err := m.admitStart(c, key, a); err != nil {
		return ProcessView{}, err
	}
	u, err := m.acquire(ctx, c, key, a)
	if err != nil {
		return ProcessView{}, err
	}
	defer func() { u.release() }() // not "defer u.release()": u may be replaced below
	if err := u.refusePaused(); err != nil {
		m.deny(c, key, "start", err)
		return ProcessView{}, err
	}
	p, err := m.startProcess(ctx, c, u, spec, nil)
	if unstarted(err) {
		if u, err = m.again(ctx, c, u, a); err == nil {
			p, err = m.startProcess(ctx, c, u, spec, nil)
		}
	}
	if err = u.s.orPaused(err); err != nil {
		return ProcessView{}, err
	}
	return p.View(), nil
}

// managed returns the spec for the engine, in a session of r.
func managed(spec ProcessSpec, key string, g ground) engine.Managed {
	dir := g.workDir(spec.Dir)
	return engine.Managed{
		Key: key, Args: spec.Args, Env: g.environ(spec.Env), Dir: dir, MakeDir: g.makesDir(dir, spec.MakeDir),
		User: spec.User, TTY: spec.TTY, Memory: spec.Memory,
		History: spec.History, StderrHistory: spec.StderrHistory, DropOldest: spec.DropOldest, DropStderr: spec.DropStderr,
	}
}

// startProcess starts a process in the box of u. An error that is engine.ErrBoxLost means
// that the box is gone and nothing was started. after is the ended process that is started
// again, or nil.
func (m *Manager) startProcess(ctx context.Context, c Caller, u *use, spec ProcessSpec, after *Process) (*Process, error) {
	s := u.s
	ctx, stop := s.callContext(ctx)
	defer stop()
	s.mu.Lock()
	ground := s.groundLocked()
	s.mu.Unlock()
	var err error
	if spec.Args, spec.Dir, err = ground.program(spec.Args, spec.Dir); err != nil {
		return nil, err
	}
	if err := cmp.Or(spec.validateSupervision(), managed(spec, "k", ground).Validate()); err != nil { // with what the image adds
		return nil, err
	}
	if err := s.checkWorkspace(ctx); err != nil {
		m.deny(c, s.key, "start", err)
		return nil, err
	}
	if err := m.checkBudget(s.key.Tenant); err != nil {
		m.deny(c, s.key, "start", err)
		return nil, err
	}
	release, from, err := s.takeReservation(spec.ID)
	if err != nil {
		m.deny(c, s.key, "start", err)
		return nil, err
	}
	if err := m.store.admit(); err != nil {
		s.giveBack(release, from)
		return nil, m.noteFailure(c, s.key, "start", err)
	}
	p, old, err := s.claimProcessID(u.box, spec, after)
	if err != nil {
		s.giveBack(release, from)
		return nil, err
	}
	if err = m.launch(ctx, c, u, p, spec); err != nil {
		p.abandon(old)
		s.giveBack(release, from)
		return nil, m.noteFailure(c, s.key, "start", err)
	}
	if old != nil {
		old.drop(ctx)
	}
	if !u.quiet {
		s.touch()
	}
	m.counters.started.Add(1)
	view := p.View()
	details := map[string]any{"pid": view.PID}
	if view.Restarts > 0 {
		details["restart"] = view.Restarts
	}
	m.publish(p.event(EventProcessStarted, c, view.Box, details))
	s.lookSoon()
	// The process runs even if this fails.
	_ = m.audit(c, s.key, audit.Entry{Action: "start", Process: p.id, Box: view.Box, Decision: audit.Done, Details: details})
	if spec.Ready != nil {
		m.spawn(p.probe)
	}
	if !m.spawn(func() { p.watch(release) }) { // last, so that the end is reported after the start
		release() // the manager closes; the process goes on, and a successor watches it
	}
	return p, nil
}

// maxRecordArgs bounds how many bytes of a command line are kept in memory and in the
// database. They are only for display.
const maxRecordArgs = 4096

// claimProcessID takes the ID for a new process, and records that. old is the ended process
// that had the ID, or nil.
func (s *session) claimProcessID(box engine.LiveBox, spec ProcessSpec, after *Process) (p, old *Process, err error) {
	p = newProcess(s, processRecord{
		Tenant: s.key.Tenant, Session: s.key.ID, ID: spec.ID, Key: newProcessKey(spec.ID), Box: box.ID(),
		State: ProcessStarting, Args: shownArgs(spec.Args, maxRecordArgs), TTY: spec.TTY != nil, ProcessSettings: spec.ProcessSettings,
		StartedAt: time.Now().Round(0), Kept: spec.keep(),
	})
	s.mu.Lock()
	old = s.processes[spec.ID]
	switch {
	case s.removing || s.box != box || s.record.State != Running:
		s.mu.Unlock()
		return nil, nil, fmt.Errorf("starting process %q: %w", spec.ID, engine.ErrBoxLost)
	case after != nil && (old != after || after.record.RestartAt.IsZero() || after.halted):
		s.mu.Unlock()
		return nil, nil, errSuperseded
	case old != nil && !old.record.State.Ended():
		state := old.record.State
		s.mu.Unlock()
		return nil, nil, fmt.Errorf("process %q is %s, stop it first: %w", spec.ID, state, ErrExists)
	}
	if old != nil {
		before := old.record
		p.record.Replaces = &before
	}
	if after != nil {
		p.record.Restarts, p.record.Failure, p.record.FailureOutput = after.record.Restarts+1, after.record.Failure, after.record.FailureOutput
		after.successor = p
	}
	s.processes[spec.ID] = p
	s.countWaitingLocked()
	changes := []change{p.record.put()}
	if old != nil {
		changes = append(changes, old.untold.changes()...)
	}
	write := s.m.store.enqueue(changes...)
	p.record.Replaces = nil // later records do not have it
	s.mu.Unlock()
	if err := write.wait(); err != nil {
		p.abandon(old)
		return nil, nil, err
	}
	if old != nil {
		old.noteTold()
	}
	return p, old, nil
}

// abandon returns the ID to old, if there is one, because p was not started. If old was
// removed meanwhile, it stays removed.
func (p *Process) abandon(old *Process) {
	s := p.s
	s.mu.Lock()
	var write *pending
	if old != nil && !old.dropped {
		s.processes[p.id] = old
		old.successor = nil
		write = s.m.store.enqueue(old.record.put())
	} else {
		delete(s.processes, p.id)
		write = s.m.store.enqueue(change{processBucket, processKey(s.key, p.id), nil})
	}
	s.countWaitingLocked()
	p.record.State = ProcessFailed
	p.dropped = true
	s.mu.Unlock()
	close(p.up)
	// Before closing done: the removal of the session waits for that, and must come last.
	if err := write.wait(); err != nil {
		s.m.report(s.key, p.id, "undoing its start: "+err.Error()) // the next opening completes it
	}
	close(p.done)
	close(p.gone)
}

// launch runs the program of p and records that it runs. If launch fails, nothing runs.
func (m *Manager) launch(ctx context.Context, c Caller, u *use, p *Process, spec ProcessSpec) error {
	s := u.s
	s.mu.Lock()
	ground, running, key := s.groundLocked(), s.running, p.record.Key
	s.mu.Unlock()
	entry := audit.Entry{Action: "start", Process: p.id, Box: u.box.ID(), Decision: audit.Allow, Details: execDetails(nil, spec.Args)}
	if spec.Ready != nil && len(spec.Ready.Command) > 0 {
		entry.Details["ready"] = shownArgs(spec.Ready.Command, maxAuditArgs)
	}
	if err := m.audit(c, s.key, entry); err != nil {
		return err
	}
	exempt := m.policy.MayStayIdle(ground.Resolved, running+1)
	if err := m.auditDecision(c, s.key, exempt, p.id); err != nil {
		return err
	}
	refused := s.refusals()
	s.mu.Lock()
	p.refused = refused
	s.mu.Unlock()
	if !u.quiet { // a restart waits for the end of the pause
		if err := u.wake(ctx, c); err != nil {
			return err
		}
	}
	live, err := u.box.Launch(ctx, managed(spec, key, ground))
	if errors.Is(err, engine.ErrPaused) && !u.quiet && u.wake(ctx, c) == nil { // paused since
		live, err = u.box.Launch(ctx, managed(spec, key, ground))
	}
	if err != nil {
		m.killStray(u.box, key)
		return startError(spec.Args[0], causeOf(ctx, err))
	}
	if err := p.markRunning(live, exempt.Allowed); err != nil {
		m.endStray(live)
		return err
	}
	return nil
}

// markRunning marks p as running once that is recorded.
func (p *Process) markRunning(live engine.ManagedProcess, exempt bool) error {
	s := p.s
	s.mu.Lock()
	r := p.record
	r.State, r.PID = ProcessRunning, live.Control().PID()
	write := s.m.store.enqueue(r.put())
	p.launched = true
	s.mu.Unlock()
	if err := write.wait(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.stopped { // while the record was written, which therefore does not say so
		r.State = ProcessStopping
		s.m.store.enqueue(r.put())
	}
	p.record, p.live = r, live
	s.running++
	s.exempt = exempt
	close(p.up)
	return nil
}

// killStray ends a process that may run although the box did not confirm its start.
func (m *Manager) killStray(box engine.LiveBox, key string) {
	for _, live := range box.Managed() {
		if live.Key() == key {
			m.endStray(live)
		}
	}
}

// endStray kills and forgets, in the background, a process that has no record.
func (m *Manager) endStray(live engine.ManagedProcess) {
	m.spawn(func() {
		m.retry(func(ctx context.Context) error {
			if isDone(live.Done()) {
				err := live.Forget(ctx)
				if errors.Is(err, engine.ErrBoxLost) {
					return nil
				}
				return err
			}
			if err := live.Control().Kill(ctx); err != nil {
				return err
			}
			select {
			case <-live.Done():
			case <-ctx.Done():
				return nil
			}
			_ = live.Forget(ctx) // the next opening forgets an unknown process
			return nil
		})
	})
}

// newProcessKey returns a new name for a process in its box. If possible it ends in id, so
// that people recognise the process, and boxd does if the database is lost.
func newProcessKey(id string) string {
	key := strings.ToLower(rand.Text()[:16])
	if len(id) > 64-len(key)-1 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return key
	}
	return key + "-" + id
}

// processID returns the ID that newProcessKey was given, or else the key itself.
func processID(key string) string {
	if _, id, found := strings.Cut(key, "-"); found && policy.ValidateProcessID(id) == nil {
		return id
	}
	return key
}
