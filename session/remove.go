package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/diskroom"
)

// removal says why, and for whom, a session is removed.
type removal struct {
	caller  Caller
	reason  string
	expired bool
}

// Remove ends a session: it kills what runs in it, and removes its box and the workspace
// that boxd keeps for it. If ctx ends before that, or after an error, the removal continues
// in the background.
//
// If the session is being created, its creator gets ErrState; running commands get the
// verdict canceled or box-lost.
func (m *Manager) Remove(ctx context.Context, c Caller, key Key) error {
	if err := key.validate(); err != nil {
		return err
	}
	s, _, err := m.lookup(key, nil)
	if err != nil {
		return err
	}
	defer m.wg.Done()
	s.mu.Lock()
	first := !s.removing // only the first request may use the reserve of the audit log
	s.mu.Unlock()
	if err := m.audit(c, key, audit.Entry{Action: "remove", Decision: audit.Allow, Ends: first}); err != nil {
		return err
	}
	const reason = "removed by request"
	s.mu.Lock()
	begun := s.markRemovalLocked(reason)
	if !s.erased {
		s.record.Retained = nil // also if a TTL has begun to end it: nothing stays
	}
	s.mu.Unlock()
	if begun {
		m.spawn(func() { s.teardown(removal{caller: c, reason: reason}) })
	}
	select {
	case <-s.removed:
		if s.isRetired() { // its TTL was faster
			return m.removeAgain(ctx, c, key)
		}
		return nil
	case <-s.stumbled:
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("removing session %q (it will be retried): %w", key.ID, s.removeErr)
	case <-ctx.Done():
		m.spawn(func() {
			select {
			case <-s.removed:
			case <-m.ctx.Done():
			}
			if s.isRetired() {
				_ = m.removeAgain(m.ctx, c, key) // the removal retries by itself
			}
		})
		if err := s.noteRemoval(); err != nil {
			return fmt.Errorf("removing session %q (it continues unless this process ends): %w", key.ID, err)
		}
		return fmt.Errorf("removing session %q (it continues): %w", key.ID, context.Cause(ctx))
	case <-m.ctx.Done():
		return ErrClosed
	}
}

func (s *session) isRetired() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retired
}

// removeAgain removes the session that stays in the place of one whose removal was asked for.
func (m *Manager) removeAgain(ctx context.Context, c Caller, key Key) error {
	if err := m.Remove(ctx, c, key); !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

// noteRemoval records that the session is being removed, so that a successor continues.
func (s *session) noteRemoval() error {
	s.mu.Lock()
	if !s.made || s.erased { // a successor removes an unfinished session without being told
		s.mu.Unlock()
		return nil
	}
	write := s.m.store.enqueue(s.putLocked()...)
	s.mu.Unlock()
	return write.wait()
}

// markRemovalLocked makes sure that nothing more begins in the session, and reports whether
// the caller has to tear it down. The caller holds s.mu.
func (s *session) markRemovalLocked(reason string) bool {
	if s.removing || s.gone {
		return false
	}
	s.removing, s.record.State, s.record.Reason = true, Stopping, reason
	s.cancel()
	return true
}

// teardown removes the session. It retries until that succeeds or the manager closes; then
// a successor continues.
func (s *session) teardown(r removal) {
	s.publish(EventState, r.caller, "", map[string]any{"state": Stopping, "reason": r.reason})
	first := true
	s.m.retry(func(ctx context.Context) error {
		if r.expired { // many sessions may expire at once
			select {
			case s.m.reapers <- struct{}{}:
				defer func() { <-s.m.reapers }()
			case <-ctx.Done():
				return nil
			}
		}
		if err := s.lockOp(ctx); err != nil {
			return nil // closing
		}
		defer s.unlockOp()
		err := s.tryRemove(ctx, r)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		s.mu.Lock()
		s.removeErr = err
		s.mu.Unlock()
		if first {
			first = false
			close(s.stumbled)
			s.m.report(s.key, "", "removing: "+err.Error())
		}
		return err
	})
}

// tryRemove removes everything that belongs to the session. The caller holds the op. The
// record goes last, so that a successor knows of whatever is left.
func (s *session) tryRemove(ctx context.Context, r removal) error {
	s.mu.Lock()
	if s.gone { // its creation was given up
		s.mu.Unlock()
		return nil
	}
	s.record.State = Stopping
	write := s.m.store.enqueue(s.putLocked()...)
	own, volume := s.record.Resolved.OwnWorkspace(), volumeOf(s.record.Resolved)
	s.mu.Unlock()
	s.unpublishPorts(r.reason)
	// On a full disk the removal goes on without a record of it: a successor then finds a
	// session without a box.
	if err := write.wait(); err != nil && !diskroom.IsFull(err) {
		return err
	}
	step, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if err := s.clearBox(step); err != nil {
		return err
	}
	if retired, err := s.retire(ctx, r); retired || err != nil {
		return err
	}
	switch {
	case volume != "":
		err := errNoStorage
		if s.m.options.Storage != nil {
			err = causeOf(ctx, s.m.options.Storage.RemoveVolume(ctx, volume))
		}
		if err != nil {
			return fmt.Errorf("removing the workspace: %w", err)
		}
	case own:
		if err := s.deleteWorkspace(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	list := s.processesLocked()
	kind, counter := EventRemoved, &s.m.counters.removed
	if r.expired {
		kind, counter = EventExpired, &s.m.counters.expired
	}
	e := s.eventLocked(kind, r.caller, map[string]any{"reason": r.reason})
	s.mu.Unlock()
	told := s.m.announce(Ending{Event: e})
	if err := s.erase(told, list...); err != nil {
		return err
	}
	for _, p := range list {
		p.drop(ctx)
	}
	s.forgetMeter()
	s.releaseImage()
	s.releaseQuota()
	counter.Add(1)
	// The session is removed, so a failure to audit that is only reported.
	_ = s.m.audit(r.caller, s.key, audit.Entry{Action: string(kind), Decision: audit.Done, Reason: r.reason, Ends: true})
	s.m.forget(s, nil, e)
	return nil
}

// erase deletes the records of the session and of its processes, and stores what tells of its end. No
// record of the session is written after that.
func (s *session) erase(told announcement, list ...*Process) error {
	changes := told.changes()
	s.mu.Lock()
	if !s.once {
		changes = append(changes, change{sessionsBucket, sessionKey(s.key), nil})
	}
	for _, p := range list {
		changes = append(changes, change{processBucket, processKey(s.key, p.id), nil})
		changes = append(changes, p.untold.changes()...)
	}
	s.erased = true
	write := s.m.store.enqueue(changes...)
	s.mu.Unlock()
	err := write.wait()
	if err != nil {
		s.mu.Lock()
		s.erased = false
		s.mu.Unlock()
		return err
	}
	for _, p := range list {
		p.noteTold()
	}
	told.stored()
	return nil
}

// removeTimeout bounds one attempt to remove a box.
const removeTimeout = 30 * time.Second

// deleteWorkspace deletes the workspace directory that boxd keeps. On success its name is
// free even if some of its content cannot be deleted: that waits in the trash.
func (s *session) deleteWorkspace(ctx context.Context) error {
	if storage := s.m.options.Storage; storage != nil && s.m.options.MinFree > 0 && !s.m.noShares.Load() {
		if err := storage.LimitDirectory(ctx, s.directory(), 0, 0); err != nil && !errors.Is(err, engine.ErrUnenforceable) && !errors.Is(err, fs.ErrNotExist) {
			s.m.log.Warn("taking the limit off the workspace", "session", s.key.String(), "error", err)
		}
	}
	err := s.m.workspaces.Delete(ctx, s.key.Tenant, s.key.ID)
	if err == nil || errors.Is(err, context.Canceled) { // canceled means that it is in the trash
		return nil
	}
	if _, e := os.Lstat(s.m.workspaces.Path(s.key.Tenant, s.key.ID)); !errors.Is(e, fs.ErrNotExist) {
		return &storageError{"removing the workspace", s.m.workspaces.Root(), err} // the next session with this ID would find it
	}
	s.m.report(s.key, "", err.Error())
	return nil
}
