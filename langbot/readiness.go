package langbot

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/langbot/attest"
)

// readiness is the readiness object of the protocol, extended by what this host was measured
// to guarantee.
type readiness struct {
	Ready      bool                    `json:"ready"`
	Mode       string                  `json:"mode"`
	Backend    readyBackend            `json:"backend"`
	Checks     map[string]bool         `json:"checks"`
	Unsafe     *bool                   `json:"unsafe_soft_storage_limits,omitempty"`
	Error      string                  `json:"error,omitempty"`
	Guarantees map[string]attest.Check `json:"guarantees"`
	Resources  map[string]int          `json:"resources,omitempty"`
}

type readyBackend struct {
	backend
	Details map[string]any `json:"details,omitempty"`
}

// Modes of readiness.
const (
	modeStandard = "standard"
	modeGrants   = "grant_enforced"
)

// standardAge is how old measurements may be where nothing depends on them. leastAge is how old
// they may always be: /readyz needs no credentials, and must not keep a probe box running.
const (
	standardAge = 10 * time.Minute
	leastAge    = 5 * time.Second
)

const notReady = "managed sandbox isolation is not ready"

// readiness asks the engine and, if it is available, measures. Where admission is required, an
// earlier answer may do, unless now is set.
func (s *Server) readiness(ctx context.Context, st *settings, now bool) readiness {
	if policy, invalid := s.book.Policy(); policy.Required {
		return s.strictReadiness(ctx, st, policy, invalid, now)
	}
	asked := time.Now()
	r := readiness{Mode: modeStandard}
	var why error
	r.Backend.backend, why = s.backend(ctx)
	r.Checks = map[string]bool{"backend_available": why == nil}
	if st.local.within != "" {
		err := s.checkWorkspaces(ctx, st.local)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // the first session creates it
		}
		r.Checks["workspace_mount"] = err == nil
		why = cmp.Or(why, err)
	}
	report := s.measure(ctx, st.local, r.Backend.Available, standardAge)
	// Failed checks do not matter here. But a measurement that hung after the engine answered is
	// the newer information.
	if why == nil && report.Late != "" && !report.At.Before(asked) {
		why = errors.New("measuring what this host guarantees did not end: " + report.Late)
	}
	if r.Ready = why == nil; why != nil {
		r.Error = oneline.Fold(why.Error())
	}
	r.Guarantees = report.Checks
	return r
}

// measure reports what the host guarantees: nothing, if the engine is not available.
func (s *Server) measure(ctx context.Context, l local, available bool, maxAge time.Duration) attest.Report {
	switch {
	case !available:
		return attest.Unmeasured("the engine is not available")
	case s.o.Prober == nil:
		return attest.Unmeasured("not measured")
	}
	var where attest.Places // empty where boxd itself keeps the directories, in volumes
	if l.within != "" {
		where.Workspaces = engine.Directory{Path: l.workspace, Within: l.within}
	}
	if dir := s.skillsDir(l); dir != "" {
		where.Skills = engine.Directory{Path: dir, Within: rootOf(dir, s.o.Roots)}
	}
	return s.o.Prober.Report(ctx, max(maxAge, leastAge), where)
}

// Unready returns why [Server.Ready] reports that the server is not ready, or nil.
func (s *Server) Unready(ctx context.Context) error {
	s.mu.Lock()
	st := s.settingsLocked(s.latest)
	s.mu.Unlock()
	if r := s.readiness(ctx, st, true); !r.Ready {
		return errors.New(r.Error)
	}
	return nil
}

// Ready is the body of /readyz. The request names no instance, so it describes the one that sent
// the most recent box_init.
func (s *Server) Ready(ctx context.Context) (any, bool) {
	s.mu.Lock()
	st := s.settingsLocked(s.latest)
	s.mu.Unlock()
	r := s.readiness(ctx, st, true)
	r.Resources = s.resources()
	return r, r.Ready
}
