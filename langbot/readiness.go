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

// readiness is the readiness object of the protocol, and with it what this host was
// measured to guarantee.
type readiness struct {
	Ready      bool                 `json:"ready"`
	Mode       string               `json:"mode"`
	Backend    readyBackend         `json:"backend"`
	Checks     map[string]bool      `json:"checks"`
	Unsafe     *bool                `json:"unsafe_soft_storage_limits,omitempty"`
	Error      string               `json:"error,omitempty"`
	Guarantees map[string]guarantee `json:"guarantees"`
	Resources  map[string]int       `json:"resources,omitempty"`
}

type readyBackend struct {
	backend
	Details map[string]any `json:"details,omitempty"`
}

// guarantee is what one experiment showed.
type guarantee struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

// Modes of readiness.
const (
	modeStandard = "standard"
	modeGrants   = "grant_enforced"
)

// standardAge is how old measurements may be where nothing depends on them, and leastAge
// how old they may be in any case: probes ask without credentials, and must not keep a
// probe box running all the time.
const (
	standardAge = 10 * time.Minute
	leastAge    = 5 * time.Second
)

const notReady = "managed sandbox isolation is not ready"

// readiness asks the engine and, if it is there, measures. With now the engine is asked even
// where admission is required and an earlier answer would do.
func (s *Server) readiness(ctx context.Context, st *settings, now bool) readiness {
	if policy, invalid := s.book.Policy(); policy.Required {
		return s.strictReadiness(ctx, st, policy, invalid, now)
	}
	asked := time.Now()
	r := readiness{Mode: modeStandard}
	var why error
	r.Backend.backend, why = s.available(ctx)
	r.Checks = map[string]bool{"backend_available": why == nil}
	if st.local.within != "" {
		err := s.checkWorkspaces(ctx, st.local)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // the first session makes it
		}
		r.Checks["workspace_mount"] = err == nil
		why = cmp.Or(why, err)
	}
	report := s.measure(ctx, st.local, r.Backend.Available, standardAge)
	// What was found false does not matter here. But a measurement that has hung since the engine
	// was asked is newer than its answer.
	if why == nil && report.Late != "" && !report.At.Before(asked) {
		why = errors.New("measuring what this host guarantees did not end: " + report.Late)
	}
	if r.Ready = why == nil; why != nil {
		r.Error = oneline.Fold(why.Error())
	}
	r.Guarantees = guarantees(report)
	return r
}

// measure is what the host guarantees; without a backend nothing.
func (s *Server) measure(ctx context.Context, l local, available bool, maxAge time.Duration) attest.Report {
	if !available {
		return nothing("the engine is not available")
	}
	var where attest.Places // empty: workspaces are boxd's own, or can be nowhere else
	if l.within != "" {
		where.Workspaces = engine.Directory{Path: l.workspace, Within: l.within}
	}
	if dir := s.skillsDir(l); dir != "" {
		where.Skills = engine.Directory{Path: dir, Within: rootOf(dir, s.o.Roots)}
	}
	return s.o.Prober.ReportOf(ctx, max(maxAge, leastAge), where)
}

func guarantees(r attest.Report) map[string]guarantee {
	out := map[string]guarantee{}
	for _, name := range attest.Names {
		check := r.Checks[name]
		out[name] = guarantee(check)
	}
	return out
}

// Ready is the body of /readyz. No instance asks there, so it is about the one that has
// said something last.
func (s *Server) Ready(ctx context.Context) (any, bool) {
	s.mu.Lock()
	st := s.settingsLocked(s.latest)
	s.mu.Unlock()
	r := s.readiness(ctx, st, true)
	r.Resources = s.resources()
	return r, r.Ready
}

// nothing is a report of what could not be measured.
func nothing(why string) attest.Report {
	r := attest.Report{Checks: map[string]attest.Check{}, At: time.Now()}
	for _, name := range attest.Names {
		r.Checks[name] = attest.Check{Reason: why}
	}
	return r
}
