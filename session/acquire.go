package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// asked is what a caller wants of a session, decided by the policy.
type asked struct {
	request  policy.Request
	resolved policy.Resolved
}

// use is a hold on a session and its box: while it is held the session does not
// expire. It is given back once, with release.
type use struct {
	s                  *session
	box                engine.LiveBox
	created, recreated bool
}

// resolve decides about r, nil being no wish at all, and which session is meant.
func (m *Manager) resolve(c Caller, key Key, r *policy.Request) (Key, *asked, error) {
	if r != nil && r.Scope != "" {
		id, err := policy.ScopeID(r.Scope, r.Variables)
		if err != nil {
			return key, nil, err
		}
		if key.ID != "" && key.ID != id {
			return key, nil, &engine.FieldError{Field: "scope", Value: engine.Quote(r.Scope), Rule: fmt.Sprintf("gives the id %q: leave one of the two out", id)}
		}
		key.ID = id
	}
	if err := key.validate(); err != nil {
		return key, nil, err
	}
	if r == nil {
		return key, nil, nil
	}
	resolved, err := m.policy.Resolve(key.Tenant, *r)
	if err != nil {
		m.deny(c, key, "ensure", err)
		return key, nil, err
	}
	if resolved.Workspace == "" && resolved.WorkspaceMode != policy.WorkspaceNone {
		dir := m.workspaces.Path(key.Tenant, key.ID)
		own := resolved.WorkspaceMount(dir, m.workspaces.Root())
		resolved.Spec.Mounts = prepend(own, resolved.Spec.Mounts)
	}
	return key, &asked{*r, resolved}, nil
}

// acquire gets a hold on session key; with a, as a has it, and made if it is missing.
// ctx bounds only the waiting and the making.
func (m *Manager) acquire(ctx context.Context, c Caller, key Key, a *asked) (*use, error) {
	for {
		s, fresh, err := m.lookup(key, a != nil)
		if err != nil {
			return nil, err
		}
		var u *use
		if fresh {
			u, err = s.create(ctx, c, a)
		} else {
			u, err = s.join(ctx, c, a)
		}
		if err == nil {
			return u, nil // which holds on to m.wg
		}
		m.wg.Done()
		if !errors.Is(err, errAgain) {
			return nil, err
		}
	}
}

// errAgain: the session is gone, or its box was lost on the way; look again.
var errAgain = errors.New("again")

// join gets a hold on a session that was there. It does not wait for anybody if the
// box is alive and nothing is to be changed.
func (s *session) join(ctx context.Context, c Caller, a *asked) (*use, error) {
	if u := s.tryUse(a); u != nil {
		s.m.counters.reused.Add(1)
		return u, nil
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	u, err := s.joinHeld(ctx, c, a)
	s.end()
	if errors.Is(err, errRemoved) {
		return nil, s.awaitRemoval(ctx)
	}
	return u, err
}

// tryUse gets a hold if nothing has to be done for it.
func (s *session) tryUse(a *asked) *use {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing || !s.aliveLocked() {
		return nil
	}
	if a != nil && len(conflicts(s.resolved, a)) > 0 {
		return nil
	}
	if change, _, err := s.m.mountChange(s.key, s.resolved, a); err != nil || !change.empty() {
		return nil
	}
	return s.useLocked()
}

func (s *session) useLocked() *use {
	s.uses++
	s.touch()
	return &use{s: s, box: s.box}
}

// release gives the hold back.
func (u *use) release() {
	s := u.s
	s.touch()
	s.mu.Lock()
	s.uses--
	s.mu.Unlock()
	if !s.armed.Load() {
		s.arm()
	}
	s.m.wg.Done()
}

// joinHeld does what has to be done for a hold. The op is held.
func (s *session) joinHeld(ctx context.Context, c Caller, a *asked) (*use, error) {
	ctx, stop := s.context(ctx)
	defer stop()
	s.mu.Lock()
	have, removing, gone, cause, alive := s.resolved, s.removing, s.gone, s.goneErr, s.aliveLocked()
	s.mu.Unlock()
	switch {
	case gone && cause != nil:
		return nil, cause
	case gone:
		return nil, errAgain
	case removing:
		return nil, errRemoved
	}
	change, err := s.compare(c, have, a)
	if err != nil {
		return nil, err
	}
	if !alive {
		return s.replace(ctx, c, change)
	}
	if !change.empty() {
		if err := s.changeMounts(ctx, c, change); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return nil, errRemoved
	}
	s.m.counters.reused.Add(1)
	return s.useLocked(), nil
}

// compare refuses what a session of have cannot be, and says what its mounts become.
func (s *session) compare(c Caller, have policy.Resolved, a *asked) (mountDiff, error) {
	if a == nil {
		return mountDiff{}, nil
	}
	if fields := conflicts(have, a); len(fields) > 0 {
		err := &ConflictError{Key: s.key, Fields: fields}
		s.m.deny(c, s.key, "ensure", err)
		return mountDiff{}, err
	}
	change, decisions, err := s.m.mountChange(s.key, have, a)
	if e := s.m.auditDecisions(c, s.key, decisions); err == nil {
		err = e
	}
	return change, err
}

// awaitRemoval waits until the session is out of the registry.
func (s *session) awaitRemoval(ctx context.Context) error {
	select {
	case <-s.removed:
		return errAgain
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of session %q: %w", s.key.ID, context.Cause(ctx))
	case <-s.m.ctx.Done():
		return ErrClosed
	}
}

// Ensure returns the session key, making it or a new box for it if need be. A live
// one that differs in a field that r sets is a *[ConflictError]; mounts are changed
// live, if r.Mounts is not nil. An empty key.ID with r.Scope is the id of that scope.
//
// Compared are all fields of r that are set, except Mounts, Scope and Variables, after
// the policy has decided about them. A session that is being removed is waited for,
// and made anew.
func (m *Manager) Ensure(ctx context.Context, c Caller, key Key, r policy.Request) (View, error) {
	key, a, err := m.resolve(c, key, &r)
	if err != nil {
		return View{}, err
	}
	u, err := m.acquire(ctx, c, key, a)
	if err != nil {
		return View{}, err
	}
	defer u.release()
	return u.view(), nil
}

// view is the session, and what was done for this use.
func (u *use) view() View {
	v := u.s.view()
	v.Created, v.Recreated = u.created, u.recreated
	return v
}

// deny notes in the audit log that something was refused; the refusal stands also if
// it cannot be written down.
func (m *Manager) deny(c Caller, key Key, action string, cause error) {
	_ = m.audit(c, key, audit.Entry{Action: action, Decision: audit.Deny, Reason: cause.Error()})
}
