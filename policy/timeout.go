package policy

import (
	"cmp"
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// Timeout of one command in a session of r: asked, or the default of r if that is
// 0 or less, but never above the cap that r was given, nor above the one that its
// profile has now. With a profile that is gone that is the one of the default profile.
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

// clampTimeout cuts d to limit; a limit of 0 or less is none.
func clampTimeout(d, limit spec.Duration) spec.Duration {
	if limit > 0 {
		d = min(d, limit)
	}
	return min(d, spec.Duration(spec.MaxTime))
}
