package session

import (
	"context"
	"fmt"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// asked is what a caller wants of a session, as the policy has decided it.
type asked struct {
	request  policy.Request
	resolved policy.Resolved
	once     bool         // the session is for one command, see [Manager.Run]
	zygote   *spec.Zygote // of that command, if its interpreter is one that the profile keeps warm
}

// resolve decides about r, and which session it means. A nil r asks for nothing.
func (m *Manager) resolve(c Caller, key Key, r *policy.Request) (Key, *asked, error) {
	if r != nil && (r.Scope != "" || key.ID == "") {
		id, err := m.policy.SessionID(key.Tenant, *r)
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
	if r.Image != nil && *r.Image == "" {
		without := *r
		without.Image, r = nil, &without
	}
	resolved, err := m.policy.Resolve(key.Tenant, *r)
	if err != nil {
		m.deny(c, key, "ensure", err)
		return key, nil, err
	}
	m.avoidLinks(key.Tenant, resolved.Mounts)
	if resolved.OwnWorkspace() {
		own := resolved.WorkspaceMount(m.workspaces.Path(key.Tenant, key.ID), m.workspaces.Root())
		if resolved.WorkspaceSize > 0 {
			own = resolved.VolumeMount(volumeName(key))
		}
		resolved.Mounts = append([]engine.Mount{own}, resolved.Mounts...)
	}
	return key, &asked{request: *r, resolved: resolved}, nil
}

// compare refuses what a session with the settings have cannot become, and returns how its
// mounts are to change.
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
	s.m.avoidLinks(s.key.Tenant, change.attach)
	if e := s.m.auditDecisions(c, s.key, decisions); err == nil {
		err = e
	}
	return change, err
}

// Ensure returns the session key, and creates it, or a new box for it, if necessary. An
// empty key.ID with r.Scope stands for the ID of that scope.
//
// A live session that differs from r is a *[ConflictError]. Ensure compares all fields that
// r sets, as the policy has resolved them, except Mounts, Scope and Variables. If r.Mounts
// is not nil, the mounts of a live session are changed. If the session is being removed,
// Ensure waits for that and creates it anew.
func (m *Manager) Ensure(ctx context.Context, c Caller, key Key, r policy.Request) (View, error) {
	p, err := m.Prepare(ctx, c, key, r)
	if err == nil {
		err = p.AwaitRecord()
	}
	if err != nil {
		return View{}, err
	}
	return p.View, nil
}

// Prepared is a session that can be used and may not be on disk yet.
type Prepared struct {
	View
	use *use
}

// AwaitRecord waits until the session is on disk. After an error it is not, and a crash of
// the daemon would lose it.
func (p Prepared) AwaitRecord() error { return p.use.awaitRecord() }

// Prepare is Ensure, but does not wait until the session is on disk. It is for a caller
// that uses the session itself before it reports the session to anyone: every other method
// that uses the session waits before it returns, as does [Prepared.AwaitRecord].
func (m *Manager) Prepare(ctx context.Context, c Caller, key Key, r policy.Request) (Prepared, error) {
	key, a, err := m.resolve(c, key, &r)
	if err != nil {
		return Prepared{}, err
	}
	u, err := m.acquireEarly(ctx, c, key, a)
	if err != nil {
		return Prepared{}, err
	}
	defer u.release()
	return Prepared{u.view(), u}, nil
}

// view returns the session, including what this call did to it.
func (u *use) view() View {
	v := u.s.view()
	v.Created, v.Recreated = u.created, u.recreated
	return v
}

// deny records in the audit log that an action was refused. The refusal stands even if it
// cannot be recorded.
func (m *Manager) deny(c Caller, key Key, action string, cause error) {
	_ = m.audit(c, key, audit.Entry{Action: action, Decision: audit.Deny, Reason: cause.Error()})
}
