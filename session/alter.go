package session

import (
	"context"
	"slices"
	"strings"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// alter makes want, and the mounts of diff, what the session has. The op is held.
func (s *session) alter(ctx context.Context, c Caller, have, want policy.Resolved, diff mountDiff) error {
	settle, err := s.reserve(have, want)
	if err != nil {
		s.m.deny(c, s.key, "update", err)
		return err
	}
	change, undo := diff.change(), diff.reverse().change()
	if limits, before := boxLimits(want), boxLimits(have); limits != before {
		change.Limits, undo.Limits = &limits, &before
	}
	err = s.change(ctx, change, undo, func(policy.Resolved) policy.Resolved {
		s.adjustLifeLocked(want)
		return diff.apply(want)
	})
	settle(err == nil)
	if err != nil {
		return s.m.fail(c, s.key, "update", err)
	}
	s.tellMounts(c, diff)
	_ = s.m.audit(c, s.key, audit.Entry{Action: "update", Decision: audit.Done, Reason: changed(have, want)}) // done
	return nil
}

// boxLimits are the limits that can be changed while a box runs.
func boxLimits(r policy.Resolved) engine.Limits {
	l := r.Spec.Limits
	return engine.Limits{Memory: l.Memory, CPUs: l.CPUs, PIDs: l.PIDs}
}

// adjustLifeLocked counts a changed lifetime from the creation of the session.
func (s *session) adjustLifeLocked(want policy.Resolved) {
	switch {
	case want.MaxLifetime == s.resolved.MaxLifetime:
	case want.MaxLifetime == 0:
		s.lifeEnd = 0
	case s.lifeEnd > 0:
		s.lifeEnd = max(1, s.lifeEnd+want.MaxLifetime-s.resolved.MaxLifetime)
	default:
		s.lifeEnd = max(1, s.bornAt+want.MaxLifetime)
	}
}

// reserve counts what want needs more than have; settle says whether it is had now.
func (s *session) reserve(have, want policy.Resolved) (settle func(done bool), err error) {
	more := policy.Use{Memory: max(0, want.Spec.Limits.Memory-have.Spec.Limits.Memory), CPUs: max(0, want.Spec.Limits.CPUs-have.Spec.Limits.CPUs)}
	if want.Spec.Limits.Memory < 0 && have.Spec.Limits.Memory >= 0 {
		more.Memory = engine.Unlimited
	}
	if want.Spec.Limits.CPUs < 0 && have.Spec.Limits.CPUs >= 0 {
		more.CPUs = engine.Unlimited
	}
	release, err := s.m.ledger.Reserve(s.key.Tenant, more)
	if err != nil {
		return nil, err
	}
	return func(done bool) {
		if done {
			counted := s.m.ledger.Adopt(s.key.Tenant, boxUse(want.Spec))
			s.mu.Lock()
			old := s.release
			s.release = counted
			s.mu.Unlock()
			old()
		}
		release()
	}, nil
}

// changed names the fields that differ, for the audit log.
func changed(have, want policy.Resolved) string {
	var list []string
	for name, differs := range map[string]bool{
		"network": have.Network != want.Network, "idle_ttl": have.IdleTTL != want.IdleTTL,
		"max_lifetime": have.MaxLifetime != want.MaxLifetime, "persistent": have.Persistent != want.Persistent,
		"cpus": have.Spec.Limits.CPUs != want.Spec.Limits.CPUs, "memory": have.Spec.Limits.Memory != want.Spec.Limits.Memory,
		"pids": have.Spec.Limits.PIDs != want.Spec.Limits.PIDs,
	} {
		if differs {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
