package session

import (
	"context"
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
	_ = s.m.audit(c, s.key, audit.Entry{Action: "update", Decision: audit.Done, Reason: strings.Join(want.Differ(&have.Settings), ", ")}) // done
	return nil
}

// boxLimits are the limits that can be changed while a box runs.
func boxLimits(r policy.Resolved) engine.Limits {
	return engine.Limits{Memory: int64(r.Memory), CPUs: r.CPUs, PIDs: r.PIDs}
}

// adjustLifeLocked counts a changed lifetime from the creation of the session.
func (s *session) adjustLifeLocked(want policy.Resolved) {
	switch {
	case want.MaxLifetime == s.resolved.MaxLifetime:
	case want.MaxLifetime == 0:
		s.lifeEnd = 0
	case s.lifeEnd > 0:
		s.lifeEnd = max(1, s.lifeEnd+(want.MaxLifetime-s.resolved.MaxLifetime).D())
	default:
		s.lifeEnd = max(1, s.bornAt+want.MaxLifetime.D())
	}
}

// reserve counts what want needs more than have; settle says whether it is had now.
func (s *session) reserve(have, want policy.Resolved) (settle func(done bool), err error) {
	more := policy.Use{Memory: max(0, int64(want.Memory-have.Memory)), CPUs: max(0, want.CPUs-have.CPUs)}
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
