package langbot

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

// end removes a live session, after the creation or change that is under way, and waits
// until it is gone. reason is for the commands that run in it. If ctx ends before, or
// something fails, the removal goes on by itself. One that is not live is errEnded.
func (s *Server) end(ctx context.Context, who session.Caller, b *box, reason string) error {
	unlock, err := s.ops.LockContext(ctx, b.physical)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if b.state != alive {
		s.mu.Unlock()
		unlock()
		return errEnded
	}
	b.state, b.ended = ending, reason
	s.mu.Unlock()
	result := make(chan error, 1)
	begun := s.background(func(ctx context.Context) {
		defer unlock()
		err := s.sessions.Remove(ctx, who, b.key)
		if err == nil || errors.Is(err, session.ErrNotFound) {
			s.forget(b)
			err = nil
		} else if v, e := s.sessions.Get(b.key); e == nil && v.State != session.Stopping { // it was not even begun
			s.mu.Lock()
			b.state, b.ended = alive, ""
			s.mu.Unlock()
		} // else its end is told by an event
		result <- err
	})
	if !begun {
		unlock()
		return errShutdown
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("removing session %s (it goes on): %w", b.logical(), context.Cause(ctx))
	}
}

// errEnded: the session is not live.
var errEnded = errors.New("the session has ended")

// endAll removes sessions side by side. Those that are being created are waited for.
func (s *Server) endAll(ctx context.Context, who session.Caller, list []*box, reason string) error {
	var wg sync.WaitGroup
	errs := make([]error, len(list))
	for i, b := range list {
		wg.Go(func() {
			errs[i] = s.end(ctx, who, b, reason)
			if errors.Is(errs[i], errEnded) {
				errs[i] = s.awaitGone(ctx, b)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// awaitGone waits for the end of a removal that somebody else has begun.
func (s *Server) awaitGone(ctx context.Context, b *box) error {
	select {
	case <-b.gone:
		return nil
	case <-s.ctx.Done(): // ctx may be one that never ends
		return errShutdown
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of session %s: %w", b.logical(), context.Cause(ctx))
	}
}

// deleteSession ends a session and waits for that.
func (k *call) deleteSession(ctx context.Context) (any, error) {
	id, err := k.session()
	if err != nil {
		return nil, err
	}
	physical, err := k.at.Physical(id)
	if err != nil {
		return nil, err
	}
	k.s.mu.Lock()
	b := k.s.boxes[physical]
	closed := b == nil || b.state == ending
	k.s.mu.Unlock()
	if closed {
		return nil, notFound(k.at, physical)
	}
	err = k.s.end(ctx, k.who(), b, "it was deleted")
	if errors.Is(err, errEnded) { // another one was faster, or its creation failed
		return nil, notFound(k.at, physical)
	}
	if err != nil {
		return nil, err
	}
	return map[string]any{"deleted": id}, nil
}

// shutdown ends all sessions of the connection's instance; those of others, and those of
// other doors, are not its business.
func (k *call) shutdown(ctx context.Context) (any, error) {
	list := k.s.boxesWhere(func(b *box) bool { return b.at.Instance == k.at.Instance })
	return nil, k.s.endAll(ctx, k.who(), list, "its instance was shut down")
}

// advanced ends what a workspace has of older generations.
func (s *Server) advanced(ctx context.Context, at protocol.Context) error {
	old := s.boxesWhere(func(b *box) bool {
		return b.at.Instance == at.Instance && b.at.Workspace == at.Workspace && b.at.Generation < at.Generation
	})
	for _, b := range old {
		s.shutRelays(b)
	}
	return s.endAll(ctx, s.self(), old, "a newer generation of its workspace has begun")
}

// vanished forgets a session that the manager does not have any more: it has expired, or
// somebody removed it through another door, or its removal has succeeded at last.
func (s *Server) vanished(ctx context.Context, b *box) error {
	s.mu.Lock()
	leaving := b.state == ending // nobody makes it anew, and somebody may hold its lock to wait for this
	s.mu.Unlock()
	if !leaving {
		unlock, err := s.ops.LockContext(ctx, b.physical)
		if err != nil {
			return err
		}
		defer unlock()
	}
	if _, err := s.sessions.Get(b.key); errors.Is(err, session.ErrNotFound) {
		s.forget(b)
	}
	return nil
}
