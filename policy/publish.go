package policy

import (
	"fmt"
	"net/netip"

	"github.com/boxd/boxd/engine/spec"
)

// PortPool is the ports of the host that sessions can publish. The zero value has none.
type PortPool struct {
	First, Last int
	Address     netip.Addr // on which the ports are open
}

// Contains reports whether the pool has the port.
func (p PortPool) Contains(port int) bool { return p.First > 0 && port >= p.First && port <= p.Last }

// Len is the number of ports.
func (p PortPool) Len() int {
	if p.First == 0 {
		return 0
	}
	return p.Last - p.First + 1
}

func (p PortPool) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// PublishPool returns the ports that sessions can publish.
func (p *Policy) PublishPool() PortPool { return p.config.Publish }

// CheckPublish decides whether a session of r may publish the ports that r asks for. A published port
// leads into the box as a preview does, so it needs a session that may have a network.
func (p *Policy) CheckPublish(r Resolved) error {
	if len(r.Publish) == 0 {
		return nil
	}
	if err := spec.ValidatePublish(r.Publish); err != nil {
		return err
	}
	denied := func(rule string, args ...any) error {
		return &DeniedError{Field: "publish", Value: fmt.Sprint(r.Publish), Rule: fmt.Sprintf(rule, args...)}
	}
	profile, ok := p.profiles[r.Profile]
	switch {
	case !ok:
		return denied("profile %q does not exist any more", r.Profile)
	case r.Sensitive:
		return denied("a sensitive session publishes no ports: ask for one of the two")
	case !profile.AllowPublish:
		return denied("profile %q publishes no ports: allow_publish is false", r.Profile)
	}
	if err := p.MayHaveNetwork(r); err != nil {
		return denied("needs a session that may have a network: %s", err)
	}
	pool := p.config.Publish
	if pool.Len() == 0 {
		return denied("this daemon publishes no ports: publish.ports in its configuration, such as 20000-20999, is the pool of them")
	}
	for i, w := range r.Publish {
		if w.Host != 0 && !pool.Contains(int(w.Host)) {
			return &DeniedError{Field: fmt.Sprintf("publish[%d].host", i), Value: w.Host.String(), Rule: fmt.Sprintf(`must be "auto", or a port of the pool, %s`, pool)}
		}
	}
	return nil
}
