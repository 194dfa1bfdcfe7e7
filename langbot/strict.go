package langbot

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/langbot/grants"
)

// cached is an earlier readiness.
type cached struct {
	at       time.Time
	of       *settings
	r        readiness
	renewing bool // it is being determined again
}

// strictReadiness is readiness where admission is required: nothing runs unless everything that
// a managed deployment relies on was measured. The policy says how long a result is valid. In
// the second half of that time it is renewed in the background, so that frequent requests do
// not wait.
//
// With now, which requests for the readiness itself set, every request checks whether boxes can
// be created. A command does not need that: it finds out when its own box cannot be created. A
// negative result is never reused, because the reason may have passed.
func (s *Server) strictReadiness(ctx context.Context, st *settings, policy grants.Policy, invalid error, now bool) readiness {
	age := time.Duration(min(policy.ReadinessCacheSec, longest)) * time.Second
	s.mu.Lock()
	last := s.strict
	s.mu.Unlock()
	old := time.Since(last.at)
	good := last.of == st && old < age && last.r.Backend.Available
	if good && now {
		_, why := s.backend(ctx)
		good = why == nil
	}
	s.mu.Lock()
	renew := good && old > age/2 && !s.strict.renewing
	if renew {
		s.strict.renewing = true
	}
	s.mu.Unlock()
	if renew {
		s.background(func(ctx context.Context) { s.renewReadiness(ctx, st, policy, invalid, age/2) })
	}
	if good {
		return last.r
	}
	return s.renewReadiness(ctx, st, policy, invalid, age)
}

// renewReadiness checks everything, with measurements that are not older than age.
func (s *Server) renewReadiness(ctx context.Context, st *settings, policy grants.Policy, invalid error, age time.Duration) readiness {
	began := time.Now()
	r := s.strictChecks(ctx, st, policy, invalid, age)
	if ctx.Err() == nil {
		s.mu.Lock()
		s.strict = cached{at: began, of: st, r: r}
		s.mu.Unlock()
	}
	return r
}

func (s *Server) strictChecks(ctx context.Context, st *settings, policy grants.Policy, invalid error, age time.Duration) readiness {
	unsafe := false // boxd has no such switch: quotas are measured
	r := readiness{Mode: modeGrants, Unsafe: &unsafe}
	var why error
	r.Backend.backend, why = s.backend(ctx)
	r.Backend.Details = map[string]any{"implementation": "boxd"}
	r.Guarantees = s.measure(ctx, st.local, r.Backend.Available, age).Checks
	mounted := s.checkWorkspaces(ctx, st.local)
	r.Checks = map[string]bool{
		"configuration":       invalid == nil,
		"required_backend":    s.backendName() == grants.RequiredBackend,
		"workspace_mount":     mounted == nil,
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
		if why := cmp.Or(why, mounted); why != nil {
			r.Error += ": " + oneline.Fold(why.Error())
		}
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

// checkWorkspaces returns nil if the directory of shared workspaces exists and can be mounted
// into boxes, or if none is named, because boxd then keeps the workspaces itself.
func (s *Server) checkWorkspaces(ctx context.Context, l local) error {
	if l.workspace == "" {
		return nil
	}
	storage := s.storage()
	if storage == nil || l.within == "" {
		return errors.New("the directory of shared workspaces is not in an allowed mount root")
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	dir, err := storage.OpenDirectory(ctx, engine.Directory{Path: l.workspace, Within: l.within, ReadOnly: true, Mappable: true})
	if err != nil {
		return err
	}
	return dir.Close()
}

// checkTime bounds how long a file system may take to open its directory.
const checkTime = 5 * time.Second
