package langbot

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

// end removes a live session, once earlier work on it is done, and waits until it is gone.
// Commands that run in it are told the reason. If ctx ends first, or a step fails, the removal
// continues in the background. The error is errEnded if the session is not live.
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
		} else if v, e := s.sessions.Get(b.key); e == nil && v.State != session.Stopping { // the removal did not begin
			s.mu.Lock()
			b.state, b.ended = alive, ""
			s.mu.Unlock()
		} // otherwise an event reports its end
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
		return fmt.Errorf("removing session %s (it continues): %w", b.logical(), context.Cause(ctx))
	}
}

// errEnded means that the session is not live.
var errEnded = errors.New("the session has ended")

// endAll removes sessions in parallel. It waits for those that are being created.
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

// awaitGone waits for the end of a removal that another goroutine has begun.
func (s *Server) awaitGone(ctx context.Context, b *box) error {
	select {
	case <-b.gone:
		return nil
	case <-s.ctx.Done(): // ctx may never end
		return errShutdown
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of session %s: %w", b.logical(), context.Cause(ctx))
	}
}

// deleteSession ends a session and waits until it is gone.
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
	if errors.Is(err, errEnded) { // another request was faster, or its creation failed
		return nil, notFound(k.at, physical)
	}
	if err != nil {
		return nil, err
	}
	return map[string]any{"deleted": id}, nil
}

// shutdown ends all sessions of the connection's instance, and only those.
func (k *call) shutdown(ctx context.Context) (any, error) {
	list := k.s.boxesWhere(func(b *box) bool { return b.at.Instance == k.at.Instance })
	return nil, k.s.endAll(ctx, k.who(), list, "its instance was shut down")
}

// advanced ends the sessions of a workspace's older generations.
func (s *Server) advanced(ctx context.Context, at protocol.Context) error {
	old := s.boxesWhere(func(b *box) bool {
		return b.at.Instance == at.Instance && b.at.Workspace == at.Workspace && b.at.Generation < at.Generation
	})
	return s.cutOff(ctx, old, "a newer generation of its workspace has begun")
}

// vanished forgets a session if the manager no longer has it: it expired, somebody removed it
// through another API, or its removal succeeded at last.
func (s *Server) vanished(ctx context.Context, b *box) error {
	s.mu.Lock()
	leaving := b.state == ending // nobody creates it anew, and the holder of its lock may wait for this
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
