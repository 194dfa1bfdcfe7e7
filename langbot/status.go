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

// backendName is the name that clients are told: where admission is required, the only one
// that they accept there.
func (s *Server) backendName() string {
	if p, _ := s.book.Policy(); p.Required {
		return grants.RequiredBackend
	}
	return s.o.BackendName
}

// backend asks the engine. Without one there is no name.
func (s *Server) backend(ctx context.Context) backend {
	b, _ := s.available(ctx)
	return b
}

// available is backend, and why there is none.
func (s *Server) available(ctx context.Context) (backend, error) {
	if err := s.o.Health(ctx); err != nil {
		return backend{}, err
	}
	name := s.backendName()
	return backend{&name, true}, nil
}

// status tells what the workspace has.
func (k *call) status(ctx context.Context) (any, error) {
	st := k.settings()
	own := k.own()
	k.s.mu.Lock()
	running := k.s.runningLocked(func(p *process) bool { return p.b.at == k.at })
	k.s.mu.Unlock()
	return map[string]any{
		"backend": k.s.backend(ctx), "active_sessions": len(own), "managed_processes": running,
		"session_ttl_sec": int64(k.s.ttl() / time.Second), "limits": st.limits,
	}, nil
}

// ttl is the time after which a session ends that nobody uses.
func (s *Server) ttl() time.Duration {
	for _, p := range s.sessions.Profiles() {
		if p.Name == s.o.Profile {
			return time.Duration(p.IdleTTL)
		}
	}
	return 0
}

// health says whether there is a backend; where admission is required, whether it is
// isolated as it must be.
func (k *call) health(ctx context.Context) (any, error) {
	if p, _ := k.s.book.Policy(); !p.Required {
		return k.s.backend(ctx), nil
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
		return k.s.backend(ctx), nil
	}
	r := k.s.readiness(ctx, k.settings(), true)
	return map[string]any{"name": r.Backend.Name, "available": r.Backend.Available, "readiness": r}, nil
}

// Live is the body of /healthz.
func (s *Server) Live() any {
	return map[string]any{"live": true, "resources": s.resources()}
}

// resources counts what there is, of all instances.
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
