package session

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// launch runs the program of p and records that it runs. If launch fails, nothing runs.
func (m *Manager) launch(ctx context.Context, c Caller, u *use, p *Process, spec ProcessSpec) error {
	s := u.s
	s.mu.Lock()
	resolved, running, key := s.record.Resolved, s.running, p.record.Key
	s.mu.Unlock()
	entry := audit.Entry{Action: "start", Process: p.id, Box: u.box.ID(), Decision: audit.Allow, Details: execDetails(nil, spec.Args)}
	if err := m.audit(c, s.key, entry); err != nil {
		return err
	}
	exempt := m.policy.MayStayIdle(resolved, running+1)
	if err := m.auditDecision(c, s.key, exempt, p.id); err != nil {
		return err
	}
	live, err := u.box.Launch(ctx, managed(spec, key, resolved))
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
