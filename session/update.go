package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Update changes a live session. If something fails, nothing was changed.
func (m *Manager) Update(ctx context.Context, c Caller, key Key, u spec.Update) (View, error) {
	if err := key.validate(); err != nil {
		return View{}, err
	}
	for {
		hold, err := m.acquire(ctx, c, key, nil)
		if err != nil {
			return View{}, err
		}
		err = hold.s.update(ctx, c, u)
		view := hold.view()
		hold.release()
		hold.s.arm() // the deadline may be sooner now
		if errors.Is(err, errAgain) {
			continue
		}
		if err != nil {
			return View{}, err
		}
		return view, nil
	}
}

// update decides about u and does it.
func (s *session) update(ctx context.Context, c Caller, u spec.Update) error {
	ctx, stop := s.context(ctx)
	defer stop()
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	s.mu.Lock()
	have, alive, removing := s.resolved, s.aliveLocked(), s.removing
	s.mu.Unlock()
	switch {
	case removing:
		return fmt.Errorf("session %q is being removed: %w", s.key.ID, ErrState)
	case !alive:
		return errAgain
	}
	diff, decisions, err := s.decideMounts(have, u)
	if err != nil {
		_ = s.m.auditDecisions(c, s.key, decisions) // the refusal stands
		return err
	}
	want, err := s.decideFields(have, u)
	if err != nil {
		s.m.deny(c, s.key, "update", err)
		return err
	}
	if want.Persistent && !have.Persistent {
		decisions = append(decisions, s.m.policy.MayStayIdle(want, 0))
	}
	if err := s.m.auditDecisions(c, s.key, decisions); err != nil {
		return err
	}
	if err := s.m.audit(c, s.key, audit.Entry{Action: "update", Decision: audit.Allow}); err != nil {
		return err
	}
	return s.alter(ctx, c, have, want, diff)
}

// decideMounts says what becomes of the mounts.
func (s *session) decideMounts(have policy.Resolved, u spec.Update) (d mountDiff, decisions []policy.Decision, err error) {
	extra := extraMounts(have)
	for i, target := range u.Detach {
		at := slices.IndexFunc(extra, func(m engine.Mount) bool { return m.Target == target })
		if at < 0 {
			return d, nil, &engine.FieldError{Field: fmt.Sprintf("detach[%d]", i), Value: spec.Quote(target),
				Rule: "must be the target of a mount of this session, other than its workspace"}
		}
		d.detach = append(d.detach, extra[at])
		extra = slices.Delete(extra, at, at+1)
	}
	for _, asked := range u.Attach {
		m, decision, err := s.m.policy.MayMount(s.key.Tenant, have, asked)
		decisions = append(decisions, decision)
		if err != nil {
			return d, decisions, err
		}
		d.attach = append(d.attach, m)
	}
	if len(d.attach) > 0 {
		err = engine.Spec{Mounts: d.apply(have).Mounts}.Validate()
	}
	return d, decisions, err
}

// decideFields says what the session has after u, its mounts apart. What a client
// could not have asked for at the creation it cannot get later. What u leaves alone is
// not decided again, also if the profile has changed or is gone.
func (s *session) decideFields(have policy.Resolved, u spec.Update) (policy.Resolved, error) {
	want := have
	if u.Network != nil {
		if err := policy.CheckNetworkChange(have.Network, *u.Network); err != nil {
			return want, err
		}
		want.Network = *u.Network
	}
	if u.Network = nil; u.LiveWishes == (spec.LiveWishes{}) {
		return want, nil
	}
	r := policy.Request{Wishes: spec.Wishes{Profile: have.Profile, LiveWishes: u.LiveWishes}}
	off := false
	r.Network = &off
	got, err := s.m.policy.Resolve(s.key.Tenant, r)
	if err != nil {
		return want, err
	}
	for _, t := range spec.Table {
		switch {
		case t.Name == "network" || !t.Asked(&r.Wishes).IsValid():
		case slices.Contains(got.Overridden, t.Name):
			return want, fmt.Errorf("%s: is locked by profile %q: %w", t.Name, have.Profile, policy.ErrDenied)
		default:
			t.Of(&want.Settings).Set(t.Of(&got.Settings))
		}
	}
	return want, nil
}
