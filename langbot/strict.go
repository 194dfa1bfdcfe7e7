package langbot

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/langbot/grants"
)

// cached is a readiness that was found out a while ago.
type cached struct {
	at time.Time
	of *settings
	r  readiness
}

// strictReadiness is readiness where admission is required: everything that a managed
// deployment relies on, and all of it measured, or nothing runs.
func (s *Server) strictReadiness(ctx context.Context, st *settings, policy grants.Policy, invalid error) readiness {
	age := time.Duration(min(policy.ReadinessCacheSec, longest)) * time.Second
	s.mu.Lock()
	last := s.strict
	s.mu.Unlock()
	if last.of == st && time.Since(last.at) < age {
		return last.r
	}
	began := time.Now()
	r := s.strictChecks(ctx, st, policy, invalid, age)
	if ctx.Err() == nil {
		s.mu.Lock()
		s.strict = cached{began, st, r}
		s.mu.Unlock()
	}
	return r
}

func (s *Server) strictChecks(ctx context.Context, st *settings, policy grants.Policy, invalid error, age time.Duration) readiness {
	unsafe := false // there is no switch for that: quotas are measured
	r := readiness{Mode: modeGrants, Backend: readyBackend{backend: s.backend(ctx)}, Unsafe: &unsafe}
	r.Backend.Details = map[string]any{"implementation": "boxd"}
	r.Guarantees = guarantees(s.measure(ctx, r.Backend.Available, age))
	r.Checks = map[string]bool{
		"configuration":       invalid == nil,
		"required_backend":    s.backendName() == grants.RequiredBackend,
		"workspace_mount":     s.workspaceMounted(ctx, st.local),
		"backend_available":   r.Backend.Available,
		"session_cap":         policy.MaxSessions <= 1,
		"managed_process_cap": policy.MaxManagedProcesses == 0,
	}
	for name, g := range r.Guarantees {
		r.Checks[name] = g.OK
	}
	failed := r.failed()
	r.Ready = len(failed) == 0
	switch {
	case invalid != nil:
		r.Error = invalid.Error()
	case !r.Ready:
		r.Error = "failed checks: " + strings.Join(failed, ", ")
	}
	return r
}

// failed names the checks that are false, sorted.
func (r readiness) failed() (names []string) {
	for name, ok := range r.Checks {
		if !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// workspaceMounted says whether the directory of shared workspaces is there and can be
// used. If none is named, boxd keeps the workspaces itself.
func (s *Server) workspaceMounted(ctx context.Context, l local) bool {
	if l.workspace == "" {
		return true
	}
	storage := s.storage()
	if storage == nil || l.within == "" {
		return false
	}
	dir, err := storage.OpenDirectory(ctx, engine.Directory{Path: l.workspace, Within: l.within})
	if err != nil {
		return false
	}
	return dir.Close() == nil
}
