package langbot

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"

	"github.com/boxd/boxd/session"
)

// takeOver finds the sessions and processes that an earlier server has left. What is on
// record and does not exist is forgotten; what exists and is on no record is removed,
// because nobody knows what it is.
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
	// Until here nobody else has looked at the registry, which is without its lock. One
	// that watches may forget a process at once, and records its session then: with all
	// the others that it has.
	all := s.boxesWhere(func(*box) bool { return true })
	for _, b := range all {
		for _, p := range s.processesOf(b) {
			s.background(func(ctx context.Context) { s.watch(ctx, p) })
		}
	}
	for _, b := range all {
		if current, ok := s.fence.Current(b.at.Instance, b.at.Workspace); ok && current > b.at.Generation {
			s.background(func(ctx context.Context) { // the generation advanced, and this was not done any more
				_ = s.end(ctx, s.self(), b, "a newer generation of its workspace has begun")
			})
		}
	}
	return nil
}

// adopt takes over a session on record, and says whether there is one.
func (s *Server) adopt(physical string, r sessionRecord) bool {
	key, err := s.keyOf(physical)
	if err != nil || !r.At.Owns(physical) {
		return false
	}
	if _, err := s.sessions.Get(key); err != nil {
		return false
	}
	// The end may have come between a change of the mounts and its record.
	b := &box{at: r.At, physical: physical, key: key, state: alive, spec: r.Spec, unsure: true, processes: map[string]*process{}, gone: make(chan struct{})}
	s.boxes[physical], s.byKey[key.ID] = b, b
	views, err := s.sessions.Processes(key)
	if err != nil {
		return true // gone this moment, which an event tells
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
		s.adoptProcess(b, id, r.Processes[id])
	}
	return true
}

func (s *Server) adoptProcess(b *box, id string, r processRecord) {
	live, err := s.sessions.Process(b.key, r.Name)
	if err != nil {
		return
	}
	p := &process{processRecord: r, b: b, id: id, started: live.View().StartedAt, gone: make(chan struct{}), live: live}
	b.processes[id] = p
}

// ours are the ids that only this package gives to sessions.
var ours = regexp.MustCompile(`^(enc:)?ws-[0-9a-f]{24}-g[0-9]+-`)

// removeUnknown removes sessions of ours that are on no record.
func (s *Server) removeUnknown() {
	for _, v := range s.sessions.List(s.o.Tenant) {
		if s.byKey[v.ID] != nil || !ours.MatchString(v.ID) {
			continue
		}
		s.log.Warn("removing a session that is on no record", "session", v.ID)
		s.background(func(ctx context.Context) {
			if err := s.sessions.Remove(ctx, s.self(), v.Key); err != nil && !errors.Is(err, session.ErrNotFound) && ctx.Err() == nil {
				s.log.Warn("removing a session that is on no record", "session", v.ID, "error", err)
			}
		})
	}
}
