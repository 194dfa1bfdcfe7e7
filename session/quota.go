package session

import (
	"context"
	"fmt"
	"time"

	"github.com/boxd/boxd/policy"
)

// measureEvery is how old the size of a workspace may be when something is to be
// started in it.
const measureEvery = 3 * time.Second

// checkWorkspace refuses to start anything while the workspaces of the tenant are over
// their quota. It is an admission quota: what runs can write more until then.
func (s *session) checkWorkspace(ctx context.Context) error {
	m := s.m
	if m.ledger.Limits(s.key.Tenant).WorkspaceBytes < 0 && m.ledger.Limits("").WorkspaceBytes < 0 {
		return nil
	}
	if err := s.measure(ctx); err != nil {
		return err
	}
	return m.ledger.Over(s.key.Tenant)
}

// measure counts the workspace of the session anew, if that was not done lately.
func (s *session) measure(ctx context.Context) error {
	s.mu.Lock()
	own := s.resolved.Workspace == "" && s.resolved.WorkspaceMode != policy.WorkspaceNone
	s.mu.Unlock()
	if !own {
		return nil
	}
	s.measuring.Lock()
	defer s.measuring.Unlock()
	now := s.m.now()
	if s.unmeasure != nil && now-s.measuredAt < measureEvery {
		return nil
	}
	usage, err := s.m.workspaces.Measure(ctx, s.key.Tenant, s.key.ID)
	if err != nil {
		return fmt.Errorf("measuring the workspace: %w", err)
	}
	if !usage.Complete {
		return fmt.Errorf("workspace of session %q: has more than %d entries, directories that are too deep or unreadable, or takes too long to be measured: %w",
			s.key.ID, usage.Entries, policy.ErrQuota)
	}
	counted := s.m.ledger.Adopt(s.key.Tenant, policy.Use{WorkspaceBytes: usage.Bytes})
	if s.unmeasure != nil {
		s.unmeasure()
	}
	s.unmeasure, s.measuredAt = counted, s.m.now()
	s.mu.Lock()
	s.measured = usage.Bytes
	s.mu.Unlock()
	return nil
}
