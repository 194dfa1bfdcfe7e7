package langbot

import (
	"context"
	"errors"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

// ensure returns the session that spec asks for. It creates a missing one, and changes the
// mounts of one that differs in them. created is the session as it was made, if this call did
// that; it is on disk after AwaitRecord. A command in it that has ended implies the same.
func (k *call) ensure(ctx context.Context, spec *protocol.BoxSpec) (b *box, created *session.Prepared, err error) {
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
		differs := b != nil && b.state == alive // reuse found that only the mounts do
		k.s.mu.Unlock()
		switch {
		case b == nil:
			return k.create(ctx, physical, spec)
		case differs:
			return b, nil, k.remount(ctx, b, spec)
		}
		if err := k.s.awaitGone(ctx, b); err != nil { // its removal failed, and is being retried
			return nil, nil, err
		}
	}
}

// reuse returns the session if it is live and matches spec; nil, nil if it has to be created
// or changed first.
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

// create creates a session. The caller holds its lock.
func (k *call) create(ctx context.Context, physical string, spec *protocol.BoxSpec) (*box, *session.Prepared, error) {
	s := k.s
	r, err := k.request(spec)
	if err != nil {
		return nil, nil, err
	}
	r.Labels = k.labels(physical)
	s.mu.Lock()
	b, err := s.reserveLocked(k.at, physical, *spec)
	if err != nil {
		s.mu.Unlock()
		return nil, nil, err
	}
	// The record is written while the session is created: the next server removes a record
	// without a session as well as a session without a record.
	noted := s.noteLocked(b)
	s.mu.Unlock()
	if removed, ok := s.unknown[b.key.ID]; ok {
		select {
		case <-removed:
		case <-ctx.Done():
		}
	}
	if err := k.stillAllowed(ctx); err != nil {
		s.forget(b)
		return nil, nil, err
	}
	prepared, err := s.sessions.Prepare(ctx, k.who(), b.key, r)
	if err == nil && !prepared.Created || errors.Is(err, session.ErrConflict) {
		// A session without a record: nothing is known about it, or about its contents.
		if err = s.sessions.Remove(ctx, k.who(), b.key); err == nil || errors.Is(err, session.ErrNotFound) {
			prepared, err = s.sessions.Prepare(ctx, k.who(), b.key, r)
		}
	}
	exists := err == nil
	if e := noted.wait(); err == nil {
		err = e
	}
	if err != nil {
		if exists {
			s.background(func(ctx context.Context) { _ = s.sessions.Remove(ctx, s.self(), b.key) }) // the manager retries
		}
		s.forget(b)
		return nil, nil, err
	}
	for _, warning := range prepared.Resolved.Warnings {
		s.log.Warn("a session lacks something that it asks for", "session", physical, "warning", warning)
	}
	s.mu.Lock()
	b.state = alive
	s.mu.Unlock()
	return b, &prepared, nil
}

// remount changes the mounts of a live session. The caller holds its lock.
func (k *call) remount(ctx context.Context, b *box, spec *protocol.BoxSpec) error {
	r, err := k.request(spec)
	if err != nil {
		return err
	}
	k.keepImage(b, &r)
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

// stillAllowed checks once more, after the session was registered, that it may exist. Whoever
// ends the sessions of a workspace first forbids new ones and then searches the registry, so
// one of the two sees the other.
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
