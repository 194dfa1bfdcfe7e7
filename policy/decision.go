package policy

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// Actions of a [Decision].
const (
	ActionResolve    = "resolve"
	ActionExec       = "exec"
	ActionMount      = "mount"
	ActionIdleExempt = "idle-exempt"
)

// Decision is a decision of the policy, to be audited.
type Decision struct {
	Action  string         // one of the actions above
	Allowed bool           // whether it may be done
	Rule    string         // that was applied, in one line
	Details map[string]any // the values on which it was decided
}

// MayExec decides about one command in a session of r that asks for a timeout; 0 is the
// default. The timeout that it gets is that of [Policy.Timeout].
func (p *Policy) MayExec(r Resolved, asked time.Duration) Decision {
	timeout := p.Timeout(r, asked)
	d := Decision{Action: ActionExec, Allowed: true, Rule: "profile " + r.Profile, Details: map[string]any{"timeout": timeout.String()}}
	if asked > timeout {
		d.Rule += ": timeout cut to the cap"
		d.Details["asked"] = asked.String()
	}
	return d
}

// MayMount decides about one more mount of a live session of r, which belongs to tenant,
// and returns the mount with the root in which it must stay. If it returns an error, which
// is one of those of [Policy.Resolve], the Decision is filled in as well.
func (p *Policy) MayMount(tenant string, r Resolved, m spec.MountWish) (spec.Mount, Decision, error) {
	return p.decideMount(tenant, r.MountMode, r.Target(), "mount", m)
}

// MountsFor decides about all mounts, other than the workspace, that a live session of r is
// to have. It is MayMount for each of them, and checks them as a set.
func (p *Policy) MountsFor(tenant string, r Resolved, asked []spec.MountWish) ([]spec.Mount, []Decision, error) {
	list, decisions, err := p.decideMounts(tenant, r.MountMode, r.Target(), asked)
	if err == nil {
		err = (spec.Spec{Mounts: list}).Validate()
	}
	if err != nil {
		return nil, decisions, err
	}
	return list, decisions, nil
}

// RecheckMounts decides again about the mounts of r, which an earlier policy may have
// allowed. It refuses a mount whose root tenant no longer has, and otherwise returns r with
// each mount held in the root that allows it now.
func (p *Policy) RecheckMounts(tenant string, r Resolved) (Resolved, error) {
	r.Mounts = slices.Clone(r.Mounts)
	for i := range r.Mounts {
		m := &r.Mounts[i]
		if m.Volume != "" || m.Target == r.Target() && r.Workspace == "" {
			continue // boxd's own mount
		}
		// The old root must not make the mount invalid if only the root has changed.
		m.Within = ""
		if err := p.checkSource(tenant, fmt.Sprintf("mounts[%d]", i), m); err != nil {
			return Resolved{}, err
		}
	}
	return r, nil
}

// MayStayIdle decides whether a session of r is exempt from its idle TTL while it has
// running managed processes.
func (p *Policy) MayStayIdle(r Resolved, running int) Decision {
	d := Decision{Action: ActionIdleExempt, Allowed: true, Details: map[string]any{"running": running, "idle_ttl": r.IdleTTL.String()}}
	switch {
	case r.Persistent:
		d.Rule = "persistent session"
	case running > 0:
		d.Rule = "a managed process is running"
	default:
		d.Allowed, d.Rule = false, "idle TTL of profile "+r.Profile
	}
	return d
}

// Timeout returns the timeout of a command in a session of r: asked, or the default of r if
// asked is 0 or less, but never above the cap that r was given, nor above the present cap
// of its profile. If that profile is gone, the default profile counts.
func (p *Policy) Timeout(r Resolved, asked time.Duration) time.Duration {
	profile, ok := p.profiles[r.Profile]
	if !ok {
		profile = p.profiles[p.config.DefaultProfile]
	}
	timeout := spec.Duration(asked)
	if asked <= 0 {
		timeout = cmp.Or(max(0, r.Timeout), profile.Timeout)
	}
	return clampTimeout(clampTimeout(timeout, r.TimeoutCap), profile.Caps.Timeout).D()
}

// Keep is what the history keeps of what runs in a session.
type Keep struct {
	Argv   string
	Output spec.Size
}

// Keep returns what the history keeps of a session of r. If its profile is gone, that is no more than
// the programs.
func (p *Policy) Keep(r Resolved) Keep {
	profile, ok := p.profiles[r.Profile]
	if !ok {
		return Keep{Argv: KeepProgram}
	}
	return Keep{profile.KeepArgv, profile.KeepOutput}
}

// clampTimeout cuts d to limit; a limit of 0 or less is no limit.
func clampTimeout(d, limit spec.Duration) spec.Duration {
	if limit > 0 {
		d = min(d, limit)
	}
	return min(d, spec.Duration(spec.MaxTime))
}
