package gateway

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
)

// allTenants in place of a tenant's name lists the sessions of all.
const allTenants = "*"

// EndLeft ends what an earlier gateway of the same instance has left: processes of the mode ModeRequest, and of servers that are
// not configured any more, at once, others when no client has come back to them within the idle time of their server. Nothing
// else would end them, because a running process keeps its box from the idle TTL.
//
// It returns at once, tries again what fails, and is called before the first request. own returns the gateway itself as a caller with
// an administrator's rights on a tenant, or on "*", all of them.
func (g *Gateway) EndLeft(own func(tenant string) Caller) {
	began := time.Now()
	g.going(func() {
		seen := map[string]bool{}
		for pause := minPause; ; pause = min(2*pause, maxPause) {
			err := g.endLeft(own, began, seen)
			if err == nil || g.ctx.Err() != nil {
				return
			}
			g.opt.Logger.Warn("mcp: looking for processes that an earlier daemon has left", "error", err)
			select {
			case <-g.ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	})
}

// endLeft looks at the boxes that are not in seen, and adds those whose processes it has found.
func (g *Gateway) endLeft(own func(tenant string) Caller, began time.Time, seen map[string]bool) error {
	all, err := own(allTenants).client()
	if err != nil {
		return err
	}
	defer all.Close()
	boxes, err := all.Sessions(g.ctx, labelServer)
	if err != nil {
		return err
	}
	var errs []error
	for _, box := range boxes {
		if seen[box.Tenant+"/"+box.ID] {
			continue
		}
		c, err := own(box.Tenant).client()
		if err != nil {
			return err
		}
		left, err := c.Processes(g.ctx, box.ID, labelServer, labelGateway+"="+g.opt.Instance)
		if err != nil && !isGone(err) {
			c.Close()
			errs = append(errs, fmt.Errorf("session %q: %w", box.ID, err))
			continue
		}
		seen[box.Tenant+"/"+box.ID] = true
		left = startedBefore(left, began)
		g.going(func() {
			defer c.Close()
			for _, p := range left {
				g.endLeftProcess(c, box, p, began)
			}
		})
	}
	return errors.Join(errs...)
}

func startedBefore(all []apitypes.Process, began time.Time) (left []apitypes.Process) {
	for _, p := range all {
		if p.StartedAt.Before(began) {
			left = append(left, p)
		}
	}
	return left
}

// endLeftProcess ends a process of an earlier gateway, unless a client comes back to it.
func (g *Gateway) endLeftProcess(c *client.Client, box apitypes.Session, p apitypes.Process, began time.Time) {
	s := g.servers[p.Labels[labelServer]]
	if s == nil || s.Mode == ModeRequest { // the server is not configured any more, or the request is gone
		g.removeAt(c, &Server{Name: p.Labels[labelServer]}, place{box: box.ID, process: p.ID})
		return
	}
	wait := time.NewTimer(time.Until(began.Add(s.Idle)))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-g.ctx.Done():
		return
	}
	if owner := p.Labels[labelOwner]; owner != "" { // of a session of the protocol, which may have been adopted
		id := strings.TrimPrefix(box.ID, s.BoxID()+"-")
		unlock, err := g.adopting.LockContext(g.ctx, id)
		if err != nil {
			return
		}
		defer unlock()
		g.mu.Lock()
		t := g.sessions[id]
		g.mu.Unlock()
		if t == nil {
			g.removeAt(c, s, place{box: box.ID, process: p.ID, owner: owner})
		}
		return
	}
	h := g.sharedHost(s, box.Tenant)
	select {
	case h.lock <- struct{}{}:
	case <-g.ctx.Done():
		return
	}
	defer func() { <-h.lock }()
	if h.p == nil {
		g.removeAt(c, s, place{box: box.ID, process: p.ID})
	}
}
