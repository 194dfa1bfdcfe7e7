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

// cached is a readiness that was found out a while ago.
type cached struct {
	at time.Time
	of *settings
	r  readiness
	// renewing: somebody is finding it out again.
	renewing bool
}

// strictReadiness is readiness where admission is required: everything that a managed
// deployment relies on, and all of it measured, or nothing runs. What was found out is good
// for as long as the policy says; in the second half of that time it is found out again
// beside, so that those who ask often do not wait.
//
// With now, as for who asks for nothing but readiness, it is asked each time whether boxes can be
// made. A command does without: if its box cannot be made it is told so then. An old "no" is
// never good: it may have passed.
func (s *Server) strictReadiness(ctx context.Context, st *settings, policy grants.Policy, invalid error, now bool) readiness {
	age := time.Duration(min(policy.ReadinessCacheSec, longest)) * time.Second
	s.mu.Lock()
	last := s.strict
	s.mu.Unlock()
	old := time.Since(last.at)
	good := last.of == st && old < age && last.r.Backend.Available
	if good && now {
		_, why := s.available(ctx)
		good = why == nil
	}
	s.mu.Lock()
	renew := good && old > age/2 && !s.strict.renewing
	if renew {
		s.strict.renewing = true
	}
	s.mu.Unlock()
	if renew {
		s.background(func(ctx context.Context) { s.findOut(ctx, st, policy, invalid, age/2) })
	}
	if good {
		return last.r
	}
	return s.findOut(ctx, st, policy, invalid, age)
}

// findOut looks at everything, with measurements that are not older than age.
func (s *Server) findOut(ctx context.Context, st *settings, policy grants.Policy, invalid error, age time.Duration) readiness {
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
	unsafe := false // there is no switch for that: quotas are measured
	r := readiness{Mode: modeGrants, Unsafe: &unsafe}
	var why error
	r.Backend.backend, why = s.available(ctx)
	r.Backend.Details = map[string]any{"implementation": "boxd"}
	r.Guarantees = guarantees(s.measure(ctx, st.local, r.Backend.Available, age))
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

// checkWorkspaces is nil if the directory of shared workspaces is there and can be mounted into
// boxes. If none is named, boxd keeps the workspaces itself.
func (s *Server) checkWorkspaces(ctx context.Context, l local) error {
	if l.workspace == "" {
		return nil
	}
	storage := s.storage()
	if storage == nil || l.within == "" {
		return errors.New("the directory of shared workspaces is not in a directory that may be mounted from")
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	dir, err := storage.OpenDirectory(ctx, engine.Directory{Path: l.workspace, Within: l.within, ReadOnly: true, Mappable: true})
	if err != nil {
		return err
	}
	return dir.Close()
}

// checkTime bounds how long a file system may take to show its directory.
const checkTime = 5 * time.Second
