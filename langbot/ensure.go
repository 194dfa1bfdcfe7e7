package langbot

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

// ensure returns the session that spec asks for, which is made if it is missing, and
// whose mounts are changed if they differ. made is what it is like if this call made it.
func (k *call) ensure(ctx context.Context, spec *protocol.BoxSpec) (b *box, made *session.Prepared, err error) {
	physical, err := k.at.Physical(spec.SessionID)
	if err != nil {
		return nil, nil, err
	}
	if b, err := k.reuse(physical, spec); b != nil || err != nil {
		return b, nil, err
	}
	unlock, err := k.s.ops.LockContext(ctx, physical)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	for {
		if b, err := k.reuse(physical, spec); b != nil || err != nil {
			return b, nil, err
		}
		k.s.mu.Lock()
		b := k.s.boxes[physical]
		differs := b != nil && b.state == alive // in its mounts only
		k.s.mu.Unlock()
		switch {
		case b == nil:
			return k.create(ctx, physical, spec)
		case differs:
			return b, nil, k.remount(ctx, b, spec)
		}
		select { // its removal has met an error and goes on
		case <-b.gone:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("waiting for the end of session %s: %w", b.logical(), context.Cause(ctx))
		}
	}
}

// reuse returns a session that is as it should be; nil, nil if something has to be done
// first.
func (k *call) reuse(physical string, spec *protocol.BoxSpec) (*box, error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	b := k.s.boxes[physical]
	if b == nil || b.state != alive {
		return nil, nil
	}
	if err := conflict(k.at, physical, &b.spec, spec); err != nil {
		return nil, err
	}
	if !b.hasMounts(spec) {
		return nil, nil
	}
	return b, nil
}

// create makes a session. Its lock is held.
func (k *call) create(ctx context.Context, physical string, spec *protocol.BoxSpec) (*box, *session.Prepared, error) {
	s := k.s
	r, err := k.request(spec)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	b, err := s.reserveLocked(k, physical, *spec)
	if err != nil {
		s.mu.Unlock()
		return nil, nil, err
	}
	// Beside the creation: a record without a session, and a session without a record,
	// are both removed when the next server opens.
	noted := s.noteLocked(b)
	s.mu.Unlock()
	if err := k.stillAllowed(ctx); err != nil {
		s.forget(b)
		return nil, nil, err
	}
	prepared, err := s.sessions.Prepare(ctx, k.who(), b.key, r)
	if err == nil && !prepared.Created || errors.Is(err, session.ErrConflict) {
		// One that is on no record: what it is, and what is in it, is not known.
		if err = s.sessions.Remove(ctx, k.who(), b.key); err == nil || errors.Is(err, session.ErrNotFound) {
			prepared, err = s.sessions.Prepare(ctx, k.who(), b.key, r)
		}
	}
	there := err == nil
	if e := noted.wait(); err == nil {
		err = e
	}
	if err != nil {
		if there {
			s.background(func(ctx context.Context) { _ = s.sessions.Remove(ctx, s.self(), b.key) }) // it is tried again by itself
		}
		s.forget(b)
		return nil, nil, err
	}
	for _, warning := range r.Warnings {
		s.log.Warn("a session lacks something that it asks for", "session", physical, "warning", warning)
	}
	s.mu.Lock()
	b.state = alive
	s.mu.Unlock()
	return b, &prepared, nil
}

// remount changes the mounts of a live session. Its lock is held.
func (k *call) remount(ctx context.Context, b *box, spec *protocol.BoxSpec) error {
	r, err := k.request(spec)
	if err != nil {
		return err
	}
	k.s.mu.Lock()
	b.unsure = true
	k.s.mu.Unlock()
	if _, err := k.s.sessions.Ensure(ctx, k.who(), b.key, r); err != nil {
		return err
	}
	k.s.mu.Lock()
	b.spec.ExtraMounts, b.unsure = extra(spec), false
	noted := k.s.noteLocked(b)
	k.s.mu.Unlock()
	return noted.wait()
}

// stillAllowed is asked once a session is in the registry: whoever ends the sessions of a
// workspace has said before that there may be no more of them, and then looks there. So
// either it finds this one, or this one finds that it may not be.
func (k *call) stillAllowed(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := k.s.fence.Check(k.at); err != nil {
		return err
	}
	if policy, _ := k.s.book.Policy(); !policy.Required {
		return nil
	}
	_, err := k.s.book.Live(k.at)
	return err
}
