package policy

import (
	"time"

	"github.com/boxd/boxd/mounts"
)

// Decision is one answer of the policy, for the audit log.
type Decision struct {
	Action  string         // "resolve", "exec", "mount", "idle-exempt" or "network"
	Allowed bool           // whether it may be done
	Rule    string         // the rule behind it, one line
	Details map[string]any // values that it was decided on
}

// MayExec decides about one command or managed process in a session of r. The
// timeout is what [Policy.Timeout] makes of asked.
func (p *Policy) MayExec(r Resolved, asked time.Duration) Decision { return Decision{} }

// MayMount decides about one mount of a live session of tenant and returns it with
// the root that it must stay in.
func (p *Policy) MayMount(tenant string, m Mount) (mounts.Mount, Decision, error) {
	return mounts.Mount{}, Decision{}, ErrDenied
}

// MayStayIdle decides whether a session of r is exempt from its idle TTL while
// running of its managed processes run.
func (p *Policy) MayStayIdle(r Resolved, running int) Decision { return Decision{} }
