package policy

import (
	"cmp"
	"time"

	"github.com/boxd/boxd/engine/spec"
)

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

// clampTimeout cuts d to limit; a limit of 0 or less is no limit.
func clampTimeout(d, limit spec.Duration) spec.Duration {
	if limit > 0 {
		d = min(d, limit)
	}
	return min(d, spec.Duration(spec.MaxTime))
}
