package policy

import (
	"fmt"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// values are the fields of a request that have a default, with nothing left open.
type values struct {
	network, writableRoot, persistent bool
	cpus                              float64
	memory, fileSize                  spec.Size
	tmpSize, upperSize                spec.Size
	pids, openFiles                   int64
	workspaceSize                     spec.Size // 0: no hard limit
	workspaceInodes                   int64     // 0: by the size
	workspaceMode                     string
	writesWorkspace                   bool // so that its size can matter
	timeout, idleTTL, maxLifetime     spec.Duration
}

// merge fills in r from p. Fields that p locks keep the value of p; those for which
// r said something else are named in overridden.
func (p Profile) merge(r Request) (v values, overridden []string) {
	m := merger{profile: p}
	v = p.asRequest()
	pick(&m, "cpus", &v.cpus, r.CPUs)
	pick(&m, "idle_ttl", &v.idleTTL, r.IdleTTL)
	pick(&m, "max_lifetime", &v.maxLifetime, r.MaxLifetime)
	pick(&m, "memory", &v.memory, r.Memory)
	pick(&m, "network", &v.network, r.Network)
	pick(&m, "persistent", &v.persistent, r.Persistent)
	pick(&m, "pids", &v.pids, r.PIDs)
	pick(&m, "timeout", &v.timeout, r.Timeout)
	pick(&m, "tmp_size", &v.tmpSize, r.TmpSize)
	pick(&m, "upper_size", &v.upperSize, r.UpperSize)
	pick(&m, "workspace_inodes", &v.workspaceInodes, r.WorkspaceInodes)
	pick(&m, "workspace_mode", &v.workspaceMode, r.WorkspaceMode)
	pick(&m, "workspace_size", &v.workspaceSize, r.WorkspaceSize)
	pick(&m, "writable_root", &v.writableRoot, r.WritableRoot)
	v.dropIdleLimits(r)
	return v, m.overridden
}

type merger struct {
	profile    Profile
	overridden []string
}

// pick puts what was asked for in dst unless field is locked.
func pick[T comparable](m *merger, field string, dst, asked *T) {
	switch {
	case asked == nil || *asked == *dst:
	case m.profile.locks(field):
		m.overridden = append(m.overridden, field)
	default:
		*dst = *asked
	}
}

// validate checks what the engine does not: the rest is spec().Validate.
func (v values) validate() error {
	if !validMode(v.workspaceMode) {
		return badMode("workspace_mode", v.workspaceMode)
	}
	if v.timeout <= 0 {
		return &engine.FieldError{Field: "timeout", Value: v.timeout.String(), Rule: "must be above 0"}
	}
	if time.Duration(v.idleTTL) < MinIdleTTL || time.Duration(v.idleTTL) > maxTime {
		return &engine.FieldError{Field: "idle_ttl", Value: v.idleTTL.String(),
			Rule: fmt.Sprintf("must be %s to %s; persistent is for sessions that do not end when idle", MinIdleTTL, maxTime)}
	}
	if time.Duration(v.maxLifetime) < 0 || time.Duration(v.maxLifetime) > maxTime {
		return &engine.FieldError{Field: "max_lifetime", Value: v.maxLifetime.String(),
			Rule: fmt.Sprintf("must be at most %s, or 0 for no end", maxTime)}
	}
	if err := v.validateWorkspaceSize(); err != nil {
		return err
	}
	return validateNonZero(v)
}

// validateNonZero refuses a zero that was asked for: to the engine it would mean
// the engine's own default, past the profile.
func validateNonZero(v values) error {
	for _, f := range []struct {
		field string
		zero  bool
	}{
		{"cpus", v.cpus == 0}, {"memory", v.memory == 0}, {"pids", v.pids == 0}, {"open_files", v.openFiles == 0},
		{"tmp_size", v.tmpSize == 0}, {"upper_size", v.upperSize == 0},
	} {
		if f.zero {
			return &engine.FieldError{Field: f.field, Value: "0", Rule: "must be above 0; leave it out for the default of the profile"}
		}
	}
	return nil
}

// checkCaps refuses what is above a cap of p; advice says what to do about a limit.
// The timeout is cut and not checked. A cap of none allows everything, Unlimited is
// above every other.
func (p Profile) checkCaps(v values, advice func(limit string) string) error {
	if err := v.validate(); err != nil {
		return err
	}
	c := p.Caps
	checks := []struct {
		field string
		above bool
		value string
		cap   string
	}{
		{"cpus", above(v.cpus, c.CPUs), countText(v.cpus), countText(c.CPUs)},
		{"memory", above(v.memory, c.Memory), spec.FormatSize(int64(v.memory)), spec.FormatSize(int64(c.Memory))},
		{"pids", above(v.pids, c.PIDs), countText(v.pids), countText(c.PIDs)},
		{"tmp_size", above(v.tmpSize, c.TmpSize), spec.FormatSize(int64(v.tmpSize)), spec.FormatSize(int64(c.TmpSize))},
		{"upper_size", v.writableRoot && above(v.upperSize, c.UpperSize), spec.FormatSize(int64(v.upperSize)), spec.FormatSize(int64(c.UpperSize))},
		{"idle_ttl", above(v.idleTTL, c.IdleTTL), v.idleTTL.String(), c.IdleTTL.String()},
		{"max_lifetime", aboveOrNone(v.maxLifetime, c.MaxLifetime), lifetimeText(v.maxLifetime), c.MaxLifetime.String()},
		{"workspace_size", v.writesWorkspace && aboveOrNone(v.workspaceSize, c.WorkspaceSize), workspaceSizeText(v.workspaceSize), spec.FormatSize(int64(c.WorkspaceSize))},
	}
	for _, check := range checks {
		if check.above {
			return &engine.FieldError{Field: check.field, Value: check.value,
				Rule: fmt.Sprintf("is above the cap %s of profile %q: %s", check.cap, p.Name, advice(check.field))}
		}
	}
	return nil
}

// above says whether v, of which a negative one is unlimited, is above limit, of
// which a negative one is none. NaN is above everything.
func above[T int64 | float64 | spec.Size | spec.Duration](v, limit T) bool {
	if limit < 0 {
		return v != v
	}
	return v < 0 || !(v <= limit)
}

// aboveOrNone is above for a limit of which 0 is none: a time for ever, a size without
// bounds.
func aboveOrNone[T spec.Size | spec.Duration](v, limit T) bool {
	return limit >= 0 && (v == 0 || v > limit)
}

func lifetimeText(d spec.Duration) string {
	if d == 0 {
		return "0 (no end)"
	}
	return d.String()
}

// countText writes a count or a number of CPUs.
func countText[T int64 | float64](n T) string {
	if n < 0 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

// spec is the part of the engine's spec that v decides.
func (v values) spec() engine.Spec {
	s := engine.Spec{
		WritableRoot: v.writableRoot,
		TmpSize:      int64(v.tmpSize),
		Limits: engine.Limits{
			Memory: int64(v.memory), PIDs: v.pids, CPUs: v.cpus,
			OpenFiles: v.openFiles, FileSize: int64(v.fileSize),
		},
	}
	if v.writableRoot {
		s.UpperSize = int64(v.upperSize)
	}
	return s
}
