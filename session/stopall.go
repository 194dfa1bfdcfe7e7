package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// parallel is how many sessions are taken over, stopped or expired at once.
const parallel = 8

// inParallel calls fn for every element, at most parallel at a time, and joins the errors.
func inParallel[T any](list []T, fn func(T) error) error {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	slots := make(chan struct{}, parallel)
	for _, e := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := fn(e); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// stopAll ends all sessions, as far as ctx allows. Nothing new begins any more.
func (m *Manager) stopAll(ctx context.Context) error {
	stop := context.AfterFunc(ctx, m.cancel) // ends all waiting
	defer stop()
	return inParallel(m.all(""), func(s *session) error {
		if err := s.shutDown(); err != nil {
			return fmt.Errorf("stopping session %q: %w", s.key.ID, err)
		}
		return nil
	})
}

// shutDown ends the session because the daemon stops.
func (s *session) shutDown() error {
	s.mu.Lock()
	persistent, removing := s.record.Resolved.Persistent, s.removing
	retained := s.record.Retained != nil
	s.mu.Unlock()
	if retained && !removing {
		return nil // there is nothing to end
	}
	if persistent && !removing {
		if err := s.halt(); !errors.Is(err, errRemoved) {
			return err
		}
	}
	const reason = "the daemon stops"
	s.mu.Lock()
	retain := s.retainLocked()
	begun := s.markRemovalLocked(reason)
	if begun {
		s.record.Retained = retain
	}
	s.mu.Unlock()
	if begun {
		s.teardown(removal{caller: system, reason: reason})
	}
	select {
	case <-s.removed:
		return nil
	case <-s.m.ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		return errors.Join(ErrClosed, s.removeErr)
	}
}

// halt removes the box and keeps the session. It returns errRemoved if the session is being
// removed.
func (s *session) halt() error {
	s.cancel() // ends the calls under way
	if err := s.lockOp(s.m.ctx); err != nil {
		return err
	}
	defer s.unlockOp()
	s.mu.Lock()
	if s.gone || s.removing {
		s.mu.Unlock()
		return errRemoved
	}
	s.record.State, s.record.Reason = Stopping, "the daemon stops"
	s.mu.Unlock()
	err := s.clearBox(s.m.ctx)
	s.mu.Lock()
	s.record.State = Stopped
	if err != nil {
		s.record.State, s.record.Reason = Failed, "stopping its box: "+err.Error()
	}
	write := s.m.store.enqueue(s.putLocked()...)
	s.mu.Unlock()
	return errors.Join(err, write.wait())
}
