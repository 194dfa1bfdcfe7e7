package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxd/boxd/engine"
)

// use is a hold on a session and its box: the session does not expire while it is held. The
// holder calls release once.
type use struct {
	s                  *session
	box                engine.LiveBox
	created, recreated bool
	quiet              bool       // it does not put off the idle TTL
	recording          *recording // of the box
}

// acquire gets a hold on session key, once the session is on disk. With a, the session is
// created if it is missing, and must be what a asks for. ctx bounds only the waiting and
// the creation.
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

// acquireEarly is acquire for a caller that itself calls awaitRecord before it answers.
func (m *Manager) acquireEarly(ctx context.Context, c Caller, key Key, a *asked) (*use, error) {
	for {
		s, fresh, err := m.lookup(key, a)
		if err != nil {
			return nil, err
		}
		var u *use
		if fresh {
			u, err = s.create(ctx, c, a)
		} else if s.once && (a == nil || !a.once) {
			err = fmt.Errorf("session %q: is a run, which has one command: %w", key.ID, ErrState)
		} else {
			u, err = s.join(ctx, c, a)
		}
		if err == nil {
			if err := u.recordError(); err != nil { // no command has begun in it
				u.release()
				return nil, err
			}
			return u, nil // u keeps the count in m.wg
		}
		m.wg.Done()
		if !errors.Is(err, errAgain) {
			return nil, err
		}
	}
}

// errAgain: the session is gone, or its box was lost on the way; the caller looks it up
// again.
var errAgain = errors.New("again")

// join gets a hold on an existing session. If the box is alive and nothing needs to change,
// it waits for no other caller.
func (s *session) join(ctx context.Context, c Caller, a *asked) (*use, error) {
	if u := s.tryUse(a); u != nil {
		s.m.counters.reused.Add(1)
		return u, nil
	}
	if err := s.takeOver(ctx); err != nil {
		return nil, err
	}
	if err := s.lockOp(ctx); err != nil {
		return nil, err
	}
	u, err := s.joinHeld(ctx, c, a)
	s.unlockOp()
	if errors.Is(err, errRemoved) {
		return nil, s.awaitRemoval(ctx)
	}
	return u, err
}

// tryUse gets a hold if that needs no change of the session.
func (s *session) tryUse(a *asked) *use {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing || !s.aliveLocked() {
		return nil
	}
	if a != nil && (a.asksSensitive() != "" && s.record.Sensitive == nil || len(conflicts(s.comparableLocked(), a)) > 0) {
		return nil
	}
	if change, _, err := s.m.mountChange(s.key, s.record.Resolved, a); err != nil || !change.empty() {
		return nil
	}
	return s.useLocked()
}

// quietUse gets a hold for something that boxd does by itself, or nil if the session has no box.
func (s *session) quietUse() *use {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing || !s.aliveLocked() {
		return nil
	}
	s.uses++
	u := s.lookLocked()
	u.quiet = true
	return u
}

func (s *session) useLocked() *use {
	s.uses++
	s.touch()
	return s.lookLocked()
}

// lookLocked returns a use that does not count and is not released. The session has a box,
// or the caller does not use it.
func (s *session) lookLocked() *use { return &use{s: s, box: s.box, recording: s.recording} }

// awaitRecord waits until the record that the box runs is on disk, or the last attempt to
// write it has failed. Callers wait for this before they answer, so that an answer remains
// true after a crash.
func (u *use) awaitRecord() error {
	for r := u.recording; r != nil; {
		<-r.done
		u.s.mu.Lock()
		next, same := u.s.recording, u.s.record.Box == u.box.ID()
		u.s.mu.Unlock()
		if r.err == nil || next == r || !same {
			return r.err
		}
		r = next
	}
	return nil
}

// recordError returns why it could not be recorded that the box runs, as far as that is
// known. It waits only after a first failure.
func (u *use) recordError() error {
	r := u.recording
	switch {
	case r == nil || !r.repeated && !isDone(r.done):
		return nil
	case r.repeated:
		return u.awaitRecord()
	}
	return r.err
}

// release ends the hold.
func (u *use) release() {
	s := u.s
	if !u.quiet {
		s.touch()
	}
	s.mu.Lock()
	s.uses--
	s.mu.Unlock()
	if !s.armed.Load() {
		s.arm()
	}
	s.m.wg.Done()
}

// joinHeld gets a hold after making the changes that a asks for. The caller holds the op.
func (s *session) joinHeld(ctx context.Context, c Caller, a *asked) (*use, error) {
	ctx, stop := s.callContext(ctx)
	defer stop()
	s.mu.Lock()
	have, removing, gone, cause, alive := s.comparableLocked(), s.removing, s.gone, s.goneErr, s.aliveLocked()
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
		return s.replace(ctx, c, a, change)
	}
	if !change.empty() || a.asksSensitive() != "" && !have.Sensitive {
		s.mu.Lock()
		u := s.lookLocked()
		s.mu.Unlock()
		if err := u.recordError(); err != nil {
			return nil, err
		}
		err := s.takeVolumes(ctx, c, "volumes", a.request.Volumes, change.attach)
		if err == nil {
			err = s.makeSensitive(c, change.attach, a.asksSensitive())
		}
		if err == nil {
			err = s.changeBox(ctx, change.engineChange(), change.reverse().engineChange(), change.apply)
		}
		s.settleVolumes()
		if err != nil {
			return nil, s.m.noteFailure(c, s.key, "mount", err)
		}
		s.reportMounts(c, change)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return nil, errRemoved
	}
	s.m.counters.reused.Add(1)
	return s.useLocked(), nil
}

// awaitRemoval waits until the session has left the registry, and returns errAgain then.
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
