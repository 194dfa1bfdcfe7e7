package langbot

import (
	"context"

	"github.com/boxd/boxd/session"
)

// follow hears of sessions that end by themselves, until the server or the manager closes.
func (s *Server) follow(sub *session.Subscription) {
	defer sub.Close()
	for {
		select {
		case <-s.ctx.Done():
			return
		case e, ok := <-sub.C:
			if !ok {
				return
			}
			s.hear(e)
		}
	}
}

func (s *Server) hear(e session.Event) {
	switch e.Type {
	case session.EventExpired, session.EventRemoved:
		s.mu.Lock()
		b := s.byKey[e.Session]
		s.mu.Unlock()
		if b != nil {
			s.lookAfter(b)
		}
	case session.EventMissed:
		for _, b := range s.boxesWhere(func(*box) bool { return true }) {
			s.lookAfter(b)
		}
	}
}

// lookAfter forgets b if it is not there any more, without making the caller wait.
func (s *Server) lookAfter(b *box) {
	s.background(func(ctx context.Context) { _ = s.vanished(ctx, b) }) // fails only while closing
}
