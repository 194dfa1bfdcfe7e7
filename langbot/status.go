package langbot

import (
	"context"
	"time"

	"github.com/boxd/boxd/langbot/grants"
	"github.com/boxd/boxd/langbot/protocol"
)

// backend is the engine as a client sees it.
type backend struct {
	Name      *string `json:"name"`
	Available bool    `json:"available"`
}

// backendName is the engine's name for clients. Where admission is required, they accept only
// one name.
func (s *Server) backendName() string {
	if p, _ := s.book.Policy(); p.Required {
		return grants.RequiredBackend
	}
	return s.o.BackendName
}

// backend asks the engine. An engine that is not available has no name; the error says why.
func (s *Server) backend(ctx context.Context) (backend, error) {
	if err := s.o.Health(ctx); err != nil {
		return backend{}, err
	}
	name := s.backendName()
	return backend{&name, true}, nil
}

// status describes what the workspace uses.
func (k *call) status(ctx context.Context) (any, error) {
	backend, _ := k.s.backend(ctx)
	k.s.mu.Lock()
	running := k.s.runningLocked(func(p *process) bool { return p.b.at == k.at })
	k.s.mu.Unlock()
	return map[string]any{
		"backend": backend, "active_sessions": len(k.own()), "managed_processes": running,
		"session_ttl_sec": int64(k.s.ttl() / time.Second), "limits": k.settings().limits,
	}, nil
}

// ttl is the time after which an unused session ends.
func (s *Server) ttl() time.Duration {
	for _, p := range s.sessions.Profiles() {
		if p.Name == s.o.Profile {
			return time.Duration(p.IdleTTL)
		}
	}
	return 0
}

// health reports whether the engine is available. Where admission is required, it fails unless
// the engine isolates boxes as it must.
func (k *call) health(ctx context.Context) (any, error) {
	if p, _ := k.s.book.Policy(); !p.Required {
		backend, _ := k.s.backend(ctx)
		return backend, nil
	}
	r := k.s.readiness(ctx, k.settings(), true)
	if !r.Ready {
		return nil, protocol.Errorf(protocol.Readiness, notReady)
	}
	return r, nil
}

// backendInfo is health that never fails.
func (k *call) backendInfo(ctx context.Context) (any, error) {
	if p, _ := k.s.book.Policy(); !p.Required {
		backend, _ := k.s.backend(ctx)
		return backend, nil
	}
	r := k.s.readiness(ctx, k.settings(), true)
	return map[string]any{"name": r.Backend.Name, "available": r.Backend.Available, "readiness": r}, nil
}

// Live is the body of /healthz.
func (s *Server) Live() any {
	return map[string]any{"live": true, "resources": s.resources()}
}

// resources counts the sessions and processes of all instances.
func (s *Server) resources() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := map[string]int{"sessions": 0, "creating_session_tasks": 0, "closing_session_tasks": 0, "managed_processes": 0, "completed_processes": 0, "background_tasks": 0}
	for _, b := range s.boxes {
		switch b.state {
		case alive:
			r["sessions"]++
		case making:
			r["creating_session_tasks"]++
		case ending:
			r["closing_session_tasks"]++
		}
		for _, p := range b.processes {
			if p.runsLocked() {
				r["managed_processes"]++
			} else {
				r["completed_processes"]++
			}
		}
	}
	return r
}
