package langbot

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"

	"github.com/boxd/boxd/session"
)

// takeOver registers the sessions and processes that an earlier server left behind. A record
// of something that does not exist is dropped; something that exists without a record is
// removed, because nothing is known about it.
func (s *Server) takeOver() error {
	var stale []string
	err := s.store.load(func(physical string, value []byte) {
		var r sessionRecord
		if json.Unmarshal(value, &r) != nil || !s.adopt(physical, r) {
			stale = append(stale, physical)
		}
	})
	if err != nil {
		return err
	}
	for _, physical := range stale {
		if err := s.store.remove(physical).wait(); err != nil {
			return err
		}
	}
	s.removeUnknown()
	// Until here this goroutine alone used the registry, and without its lock. The processes are
	// watched only now because a watcher may forget its process at once and then record the
	// session, with all the other processes that it has.
	all := s.boxesWhere(anyBox)
	for _, b := range all {
		for _, p := range s.processesOf(b) {
			s.background(func(ctx context.Context) { s.watch(ctx, p) })
		}
	}
	for _, b := range all {
		if current, ok := s.fence.Current(b.at.Instance, b.at.Workspace); ok && current > b.at.Generation {
			s.background(func(ctx context.Context) { // which the earlier server did not get to
				_ = s.end(ctx, s.self(), b, "a newer generation of its workspace has begun")
			})
		}
	}
	return nil
}

// adopt registers a recorded session, and reports whether it exists.
func (s *Server) adopt(physical string, r sessionRecord) bool {
	key, err := s.keyOf(physical)
	if err != nil || !r.At.Owns(physical) {
		return false
	}
	if _, err := s.sessions.Get(key); err != nil {
		return false
	}
	b := newBox(r.At, physical, key, r.Spec)
	b.state, b.unsure = alive, true // the server may have ended between a change of the mounts and its record
	s.boxes[physical] = b
	views, err := s.sessions.Processes(key)
	if err != nil {
		return true // it was removed just now, which an event reports
	}
	known := map[string]string{}
	for id, p := range r.Processes {
		known[p.Name] = id
	}
	for _, view := range views {
		id, ok := known[view.ID]
		if !ok {
			s.removeLater(key, view.ID)
			continue
		}
		if live, err := s.sessions.Process(key, view.ID); err == nil {
			b.processes[id] = &process{processRecord: r.Processes[id], b: b, id: id, started: live.View().StartedAt, gone: make(chan struct{}), live: live}
		}
	}
	return true
}

// ours matches the IDs that only this package gives to sessions.
var ours = regexp.MustCompile(`^(enc:)?ws-[0-9a-f]{24}-g[0-9]+-`)

// removeUnknown removes sessions of this package that have no record. A session of the same name is
// created only after that, so the removal cannot reach it.
func (s *Server) removeUnknown() {
	s.unknown = map[string]chan struct{}{}
	known := map[string]bool{}
	for _, b := range s.boxes {
		known[b.key.ID] = true
	}
	for _, v := range s.sessions.List(s.o.Tenant) {
		if known[v.ID] || !ours.MatchString(v.ID) {
			continue
		}
		s.log.Warn("removing a session that has no record", "session", v.ID)
		removed := make(chan struct{})
		s.unknown[v.ID] = removed
		s.background(func(ctx context.Context) {
			defer close(removed)
			if err := s.sessions.Remove(ctx, s.self(), v.Key); err != nil && !errors.Is(err, session.ErrNotFound) && ctx.Err() == nil {
				s.log.Warn("removing a session that has no record", "session", v.ID, "error", err)
			}
		})
	}
}

// follow forgets sessions that end by themselves, until the server or the manager closes.
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
			missed := e.Type == session.EventMissed
			if !missed && e.Type != session.EventExpired && e.Type != session.EventRemoved {
				continue
			}
			for _, b := range s.boxesWhere(func(b *box) bool { return missed || b.key.ID == e.Session }) {
				s.background(func(ctx context.Context) { _ = s.vanished(ctx, b) }) // fails only while the server closes
			}
		}
	}
}
