package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxd/boxd/engine"
)

// use is a hold on a session and its box: while it is held the session does not
// expire. It is given back once, with release.
type use struct {
	s                  *session
	box                engine.LiveBox
	created, recreated bool
	recording          *recording // of the box
}

// acquire gets a hold on session key, which is on disk; with a, as a has it, and made if
// it is missing. ctx bounds only the waiting and the making.
func (m *Manager) acquire(ctx context.Context, c Caller, key Key, a *asked) (*use, error) {
	u, err := m.acquireEarly(ctx, c, key, a)
	if err != nil {
		return nil, err
	}
	if err := u.awaitRecord(); err != nil {
		u.release()
		return nil, err
	}
	return u, nil
}

// acquireEarly is acquire for a caller that calls awaitRecord itself, before it answers.
func (m *Manager) acquireEarly(ctx context.Context, c Caller, key Key, a *asked) (*use, error) {
	for {
		s, fresh, err := m.lookup(key, a != nil)
		if err != nil {
			return nil, err
		}
		var u *use
		if fresh {
			u, err = s.create(ctx, c, a)
		} else {
			u, err = s.join(ctx, c, a)
		}
		if err == nil {
			if err := u.unrecorded(); err != nil { // nothing is begun in it
				u.release()
				return nil, err
			}
			return u, nil // which holds on to m.wg
		}
		m.wg.Done()
		if !errors.Is(err, errAgain) {
			return nil, err
		}
	}
}

// errAgain: the session is gone, or its box was lost on the way; look again.
var errAgain = errors.New("again")

// join gets a hold on a session that was there. It does not wait for anybody if the
// box is alive and nothing is to be changed.
func (s *session) join(ctx context.Context, c Caller, a *asked) (*use, error) {
	if u := s.tryUse(a); u != nil {
		s.m.counters.reused.Add(1)
		return u, nil
	}
	if err := s.takeOver(ctx); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	u, err := s.joinHeld(ctx, c, a)
	s.end()
	if errors.Is(err, errRemoved) {
		return nil, s.awaitRemoval(ctx)
	}
	return u, err
}

// tryUse gets a hold if nothing has to be done for it.
func (s *session) tryUse(a *asked) *use {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing || !s.aliveLocked() {
		return nil
	}
	if a != nil && len(conflicts(s.resolved, a)) > 0 {
		return nil
	}
	if change, _, err := s.m.mountChange(s.key, s.resolved, a); err != nil || !change.empty() {
		return nil
	}
	return s.useLocked()
}

func (s *session) useLocked() *use {
	s.uses++
	s.touch()
	return s.lookLocked()
}

// look is a use that does not count and is not given back. There is a box.
func (s *session) look() *use {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lookLocked()
}

func (s *session) lookLocked() *use { return &use{s: s, box: s.box, recording: s.recording} }

// awaitRecord waits until the record that the box runs is on disk, or the last attempt to
// write it has failed. Callers wait for this before they answer, so that an answer remains
// true after a crash.
func (u *use) awaitRecord() error {
	for r := u.recording; r != nil; {
		<-r.done
		u.s.mu.Lock()
		next, same := u.s.recording, u.s.boxID == u.box.ID()
		u.s.mu.Unlock()
		if r.err == nil || next == r || !same {
			return r.err
		}
		r = next
	}
	return nil
}

// unrecorded is why it could not be recorded that the box runs, as far as that is known.
// It waits only after a first failure.
func (u *use) unrecorded() error {
	r := u.recording
	switch {
	case r == nil || !r.repeated && !isDone(r.done):
		return nil
	case r.repeated:
		return u.awaitRecord()
	}
	return r.err
}

// release gives the hold back.
func (u *use) release() {
	s := u.s
	s.touch()
	s.mu.Lock()
	s.uses--
	s.mu.Unlock()
	if !s.armed.Load() {
		s.arm()
	}
	s.m.wg.Done()
}

// joinHeld does what has to be done for a hold. The op is held.
func (s *session) joinHeld(ctx context.Context, c Caller, a *asked) (*use, error) {
	ctx, stop := s.context(ctx)
	defer stop()
	s.mu.Lock()
	have, removing, gone, cause, alive := s.resolved, s.removing, s.gone, s.goneErr, s.aliveLocked()
	s.mu.Unlock()
	switch {
	case gone && cause != nil:
		return nil, cause
	case gone:
		return nil, errAgain
	case removing:
		return nil, errRemoved
	}
	change, err := s.compare(c, have, a)
	if err != nil {
		return nil, err
	}
	if !alive {
		return s.replace(ctx, c, change)
	}
	if !change.empty() {
		if err := s.look().unrecorded(); err != nil {
			return nil, err
		}
		if err := s.changeMounts(ctx, c, change); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return nil, errRemoved
	}
	s.m.counters.reused.Add(1)
	return s.useLocked(), nil
}

// awaitRemoval waits until the session is out of the registry.
func (s *session) awaitRemoval(ctx context.Context) error {
	select {
	case <-s.removed:
		return errAgain
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of session %q: %w", s.key.ID, context.Cause(ctx))
	case <-s.m.ctx.Done():
		return ErrClosed
	}
}
