package session

import (
	"context"
	"fmt"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// asked is what a caller wants of a session, decided by the policy.
type asked struct {
	request  policy.Request
	resolved policy.Resolved
}

// resolve decides about r, nil being no wish at all, and which session is meant.
func (m *Manager) resolve(c Caller, key Key, r *policy.Request) (Key, *asked, error) {
	if r != nil && r.Scope != "" {
		id, err := policy.ScopeID(r.Scope, r.Variables)
		if err != nil {
			return key, nil, err
		}
		if key.ID != "" && key.ID != id {
			return key, nil, &engine.FieldError{Field: "scope", Value: spec.Quote(r.Scope), Rule: fmt.Sprintf("gives the id %q: leave one of the two out", id)}
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
	if resolved.OwnWorkspace() {
		own := resolved.WorkspaceMount(m.workspaces.Path(key.Tenant, key.ID), m.workspaces.Root())
		if resolved.WorkspaceSize > 0 {
			own = resolved.VolumeMount(volumeName(key))
		}
		resolved.Mounts = prepend(own, resolved.Mounts)
	}
	return key, &asked{*r, resolved}, nil
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

// Ensure returns the session key, making it or a new box for it if need be. A live
// one that differs in a field that r sets is a *[ConflictError]; mounts are changed
// live, if r.Mounts is not nil. An empty key.ID with r.Scope is the id of that scope.
//
// Compared are all fields of r that are set, except Mounts, Scope and Variables, after
// the policy has decided about them. A session that is being removed is waited for,
// and made anew.
func (m *Manager) Ensure(ctx context.Context, c Caller, key Key, r policy.Request) (View, error) {
	v, recorded, err := m.Prepare(ctx, c, key, r)
	if err == nil {
		err = recorded()
	}
	if err != nil {
		return View{}, err
	}
	return v, nil
}

// Prepare is Ensure for a caller who runs something in the session before anybody hears
// of it. It does not wait until the session is on disk: all others do before they return,
// and so does recorded, whose error means that it is not. It is nil with an err.
func (m *Manager) Prepare(ctx context.Context, c Caller, key Key, r policy.Request) (v View, recorded func() error, err error) {
	key, a, err := m.resolve(c, key, &r)
	if err != nil {
		return View{}, nil, err
	}
	u, err := m.acquireEarly(ctx, c, key, a)
	if err != nil {
		return View{}, nil, err
	}
	defer u.release()
	return u.view(), u.awaitRecord, nil
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
