package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session/workspace"
)

// measureEvery is how old the size of a workspace may be when something is started in it.
// After a slow measurement it may be older, so that measuring takes at most a fiftieth of
// the time.
const (
	measureEvery = 3 * time.Second
	measureShare = 50
)

// checkWorkspace refuses to start anything while the workspaces of the tenant are over
// their quota. The quota is checked only at admission: what runs already can write more.
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

// checkRoom refuses if there is no room for one more byte. It ignores the other quotas,
// which may have been lowered.
func (m *Manager) checkRoom(tenant string) error {
	release, err := m.ledger.Reserve(tenant, policy.Use{WorkspaceBytes: 1})
	if err != nil {
		return err
	}
	release()
	return nil
}

// measureAll measures the workspaces of the sessions that were taken over, one by one.
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

// workspaceUse is how much of the tenant's quota the workspace of a session counts.
type workspaceUse struct {
	mu      sync.Mutex    // held during a measurement; taken before session.mu
	next    time.Duration // time of m.now before which the workspace is not measured again
	partial bool          // the last measurement was incomplete
	release func()        // returns the measured bytes to the ledger; nil before the first measurement
}

// measure measures the workspace of the session, unless that was done lately. It tells
// operators if a workspace is too large to be measured completely; the rest does not count.
func (s *session) measure(ctx context.Context) error {
	s.mu.Lock()
	own, volume := s.record.Resolved.OwnWorkspace(), volumeOf(s.record.Resolved)
	s.mu.Unlock()
	if !own || !s.usage.mu.TryLock() { // the caller that holds the lock measures for all
		return nil
	}
	defer s.usage.mu.Unlock()
	s.mu.Lock()
	here := !s.removing && !s.gone && s.record.State != Creating
	s.mu.Unlock()
	if !here { // releaseQuota has returned what the workspace counts, or waits to do so
		return nil
	}
	began := s.m.now()
	if s.usage.release != nil && began < s.usage.next {
		return nil
	}
	use := workspace.Usage{Complete: true}
	var err error
	if volume != "" {
		use.Bytes, err = s.m.volumeUse(ctx, volume)
	} else {
		use, err = s.m.workspaces.Measure(ctx, s.key.Tenant, s.key.ID)
	}
	if err != nil {
		return fmt.Errorf("measuring the workspace: %w", err)
	}
	if !use.Complete && !s.usage.partial {
		s.m.report(s.key, "", fmt.Sprintf("the quota counts only a part of the workspace: it has more than %d entries, unreadable or very deep directories, or a slow disk", workspace.MaxEntries))
	}
	s.usage.partial = !use.Complete
	counted := s.m.ledger.Adopt(s.key.Tenant, policy.Use{WorkspaceBytes: spec.Size(use.Bytes)})
	if s.usage.release != nil {
		s.usage.release()
	}
	s.usage.release = counted
	s.usage.next = s.m.now() + max(measureEvery, measureShare*(s.m.now()-began))
	s.mu.Lock()
	s.workspaceBytes = use.Bytes
	s.mu.Unlock()
	return nil
}
