package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Update changes a live session. If it fails, it has changed nothing.
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
		hold.s.arm() // the deadline may be earlier now
		if errors.Is(err, errAgain) {
			continue
		}
		if err != nil {
			return View{}, err
		}
		return view, nil
	}
}

// update decides about u and makes the change.
func (s *session) update(ctx context.Context, c Caller, u spec.Update) error {
	ctx, stop := s.callContext(ctx)
	defer stop()
	if err := s.lockOp(ctx); err != nil {
		return err
	}
	defer s.unlockOp()
	s.mu.Lock()
	have, alive, removing := s.resolvedLocked(), s.aliveLocked(), s.removing
	s.mu.Unlock()
	switch {
	case removing:
		return fmt.Errorf("session %q is being removed: %w", s.key.ID, ErrState)
	case !alive:
		return errAgain
	}
	diff, decisions, err := s.decideMounts(have, u)
	if err != nil {
		_ = s.m.auditDecisions(c, s.key, decisions) // the refusal stands even if this fails
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
	err = s.takeVolumes(ctx, c, "attach_volumes", u.AttachVolumes, diff.attach)
	if err == nil {
		reason := ""
		switch {
		case want.Sensitive && !have.Sensitive:
			reason = askedFor
		case have.Network && !want.Network:
			reason = networkOff
		}
		err = s.makeSensitive(c, diff.attach, reason)
	}
	if err == nil {
		want.Network = want.Network && !s.isSensitive()
		opens := want.Network && (u.Network != nil || u.NetworkRules != nil)
		err = s.applyUpdate(ctx, c, have, want, diff, opens)
	} else {
		_ = s.m.noteFailure(c, s.key, "update", err)
	}
	s.settleVolumes()
	return err
}

// decideMounts returns the change of mounts that u asks for.
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
	volumes, decisions, err := s.m.policy.VolumesFor(s.key.Tenant, "attach_volumes", have, u.AttachVolumes)
	if err != nil {
		return d, decisions, err
	}
	for i, m := range volumes {
		if slices.ContainsFunc(extra, func(has engine.Mount) bool { return has.Volume == m.Volume }) {
			return d, decisions, &engine.FieldError{Field: fmt.Sprintf("attach_volumes[%d].name", i), Value: spec.Quote(u.AttachVolumes[i].Name), Rule: "is attached already: detach its target in the same request to change it"}
		}
		d.attach = append(d.attach, m)
	}
	for _, asked := range u.Attach {
		m, decision, err := s.m.policy.MayMount(s.key.Tenant, have, asked)
		decisions = append(decisions, decision)
		if err != nil {
			return d, decisions, err
		}
		d.attach = append(d.attach, m)
	}
	s.m.avoidLinks(s.key.Tenant, d.attach)
	if len(d.attach) > 0 {
		err = engine.Spec{Mounts: d.apply(have).Mounts}.Validate()
	}
	return d, decisions, err
}

// decideFields returns the settings, other than mounts, that the session has after u. A
// client can only get what it could have asked for at the creation. Settings that u leaves
// alone are not decided again, even if the profile has changed or is gone.
func (s *session) decideFields(have policy.Resolved, u spec.Update) (policy.Resolved, error) {
	want := have
	if u.Sensitive != nil && !*u.Sensitive && have.Sensitive {
		return want, &policy.DeniedError{Field: "sensitive", Value: "false", Rule: "what has been sensitive stays so: remove the session with its workspace"}
	}
	if u.Network != nil {
		if *u.Network && !have.Network {
			if err := s.m.MayHaveNetwork(s.key); err != nil {
				return want, err
			}
			if u.Sensitive != nil && *u.Sensitive {
				return want, &policy.DeniedError{Field: "network", Value: "true", Rule: "a sensitive session has no network: ask for one of the two"}
			}
			if _, err := s.m.policy.NetworkRules(s.key.Tenant, have); err != nil {
				return want, err
			}
		}
		want.Network = *u.Network
	}
	if u.NetworkRules != nil {
		if s.m.policy.Locks(have.Profile, spec.NetworkRulesName) {
			return want, fmt.Errorf("network_rules: is locked by profile %q: %w", have.Profile, policy.ErrDenied)
		}
		want.NetworkRules = u.NetworkRules
		if err := s.m.policy.CheckNetworkRules(s.key.Tenant, want); err != nil {
			return want, err
		}
	}
	if u.Name != nil {
		want.Name = *u.Name
	}
	if len(u.Labels) > 0 {
		want.Labels = have.Labels.With(u.Labels)
	}
	if err := cmp.Or(spec.ValidateName(want.Name), want.Labels.Validate("labels")); err != nil {
		return want, err
	}
	if u.Network = nil; u.LiveWishes == (spec.LiveWishes{}) {
		return want, nil
	}
	r := policy.Request{HasImage: true, Wishes: spec.Wishes{Profile: have.Profile, LiveWishes: u.LiveWishes}}
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
	want.Network = want.Network && !want.Sensitive
	return want, nil
}

// applyUpdate makes want, and the mounts of diff, what the session has. opens says that its network
// must be open afterwards: it is new, or was lost. The caller holds the op.
func (s *session) applyUpdate(ctx context.Context, c Caller, have, want policy.Resolved, diff mountDiff, opens bool) error {
	settle, err := s.reserve(have, want)
	if err != nil {
		s.m.deny(c, s.key, "update", err)
		return err
	}
	s.mu.Lock()
	box := s.box
	opens = opens && s.proxy == nil
	s.mu.Unlock()
	if opens {
		if err := s.openNetwork(ctx, box, want); err != nil {
			settle(false)
			return s.m.noteFailure(c, s.key, "update", err)
		}
	}
	change, undo := diff.engineChange(), diff.reverse().engineChange()
	if limits, before := boxLimits(want), boxLimits(have); limits != before {
		change.Limits, undo.Limits = &limits, &before
	}
	err = s.changeBox(ctx, change, undo, func(policy.Resolved) policy.Resolved {
		s.adjustLifeLocked(want)
		return diff.apply(want)
	})
	settle(err == nil)
	if err != nil {
		if opens {
			s.closeNetwork()
		}
		return s.m.noteFailure(c, s.key, "update", err)
	}
	s.reportMounts(c, diff)
	changed := want.Differ(&have.Settings)
	if !want.NetworkRules.Equal(have.NetworkRules) {
		s.changeNetwork(want)
		changed = append(changed, "network_rules")
	}
	if want.Name != have.Name {
		changed = append(changed, "name")
	}
	if !maps.Equal(want.Labels, have.Labels) {
		changed = append(changed, "labels")
	}
	// The change was allowed and is made, so a failure to audit it is only reported.
	_ = s.m.audit(c, s.key, audit.Entry{Action: "update", Decision: audit.Done, Reason: strings.Join(changed, ", "), Details: labelDetails(want)})
	return nil
}

// boxLimits returns the limits that can change while a box runs.
func boxLimits(r policy.Resolved) engine.Limits {
	return engine.Limits{Memory: int64(r.Memory), CPUs: r.CPUs, PIDs: r.PIDs}
}

// adjustLifeLocked counts a changed lifetime from the creation of the session.
func (s *session) adjustLifeLocked(want policy.Resolved) {
	switch {
	case want.MaxLifetime == s.record.Resolved.MaxLifetime:
	case want.MaxLifetime == 0:
		s.lifeEnd = 0
	case s.lifeEnd > 0:
		s.lifeEnd = max(1, s.lifeEnd+(want.MaxLifetime-s.record.Resolved.MaxLifetime).D())
	default:
		s.lifeEnd = max(1, s.bornAt+want.MaxLifetime.D())
	}
}

// reserve counts what want needs beyond have; the caller calls settle once it knows whether
// the session has it.
func (s *session) reserve(have, want policy.Resolved) (settle func(done bool), err error) {
	more := policy.Use{Memory: max(0, want.Memory-have.Memory), CPUs: max(0, want.CPUs-have.CPUs)}
	if want.Memory < 0 && have.Memory >= 0 {
		more.Memory = engine.Unlimited
	}
	if want.CPUs < 0 && have.CPUs >= 0 {
		more.CPUs = engine.Unlimited
	}
	release, err := s.m.ledger.Reserve(s.key.Tenant, more)
	if err != nil {
		return nil, err
	}
	return func(done bool) {
		if done {
			counted := s.m.ledger.Adopt(s.key.Tenant, boxUse(want))
			s.mu.Lock()
			old := s.release
			s.release = counted
			s.mu.Unlock()
			old()
		}
		release()
	}, nil
}
