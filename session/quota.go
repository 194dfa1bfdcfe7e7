package session

import (
	"context"
	"fmt"
	"time"

	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session/workspace"
)

// measureEvery is how old the size of a workspace may be when something is to be
// started in it; after a slow measurement it may be older, so that measuring takes a
// fiftieth of the time at most.
const (
	measureEvery = 3 * time.Second
	measureShare = 50
)

// checkWorkspace refuses to start anything while the workspaces of the tenant are over
// their quota. It is an admission quota: what runs can write more until then.
func (s *session) checkWorkspace(ctx context.Context) error {
	if !s.m.limitsWorkspaces(s.key.Tenant) {
		return nil
	}
	if err := s.measure(ctx); err != nil {
		return err
	}
	return s.m.checkRoom(s.key.Tenant)
}

func (m *Manager) limitsWorkspaces(tenant string) bool {
	return m.ledger.Limits(tenant).WorkspaceBytes >= 0 || m.ledger.Limits("").WorkspaceBytes >= 0
}

// checkRoom refuses if there is no room for one byte. Other quotas, which may have been
// lowered, are none of this.
func (m *Manager) checkRoom(tenant string) error {
	release, err := m.ledger.Reserve(tenant, policy.Use{WorkspaceBytes: 1})
	if err != nil {
		return err
	}
	release()
	return nil
}

// measureAll counts the workspaces of the sessions that were taken over, one by one.
func (m *Manager) measureAll() {
	for _, s := range m.all("") {
		if !m.limitsWorkspaces(s.key.Tenant) {
			continue
		}
		if err := s.measure(s.ctx); err != nil && s.ctx.Err() == nil {
			m.report(s.key, "", err.Error())
		}
	}
}

// measureUsage asks the engine about a workspace that is a volume, and counts another.
func (s *session) measureUsage(ctx context.Context, volume string) (workspace.Usage, error) {
	if volume == "" {
		return s.m.workspaces.Measure(ctx, s.key.Tenant, s.key.ID)
	}
	bytes, err := s.m.volumeUse(ctx, volume)
	return workspace.Usage{Bytes: bytes, Complete: true}, err
}

// measure counts the workspace of the session anew, if that was not done lately. What
// is beyond the bounds of a measurement is not counted, which operators are told.
func (s *session) measure(ctx context.Context) error {
	s.mu.Lock()
	own, volume := s.resolved.OwnWorkspace(), volumeOf(s.resolved)
	s.mu.Unlock()
	if !own || !s.measuring.TryLock() { // who measures now tells the others
		return nil
	}
	defer s.measuring.Unlock()
	s.mu.Lock()
	here := !s.removing && !s.gone && s.state != Creating
	s.mu.Unlock()
	if !here { // what it counts has been given back, or will be when measuring is unlocked
		return nil
	}
	began := s.m.now()
	if s.unmeasure != nil && began < s.measureNext {
		return nil
	}
	usage, err := s.measureUsage(ctx, volume)
	if err != nil {
		return fmt.Errorf("measuring the workspace: %w", err)
	}
	if !usage.Complete && !s.partial {
		s.m.report(s.key, "", fmt.Sprintf("workspace counts too little in the quota: it has more than %d entries, unreadable or very deep directories, or a slow disk", workspace.MaxEntries))
	}
	s.partial = !usage.Complete
	counted := s.m.ledger.Adopt(s.key.Tenant, policy.Use{WorkspaceBytes: usage.Bytes})
	if s.unmeasure != nil {
		s.unmeasure()
	}
	s.unmeasure = counted
	s.measureNext = s.m.now() + max(measureEvery, measureShare*(s.m.now()-began))
	s.mu.Lock()
	s.measured = usage.Bytes
	s.mu.Unlock()
	return nil
}
