package gateway

import (
	"context"
	"strings"
	"sync"
	"time"
)

// sharedSessionIdle is how long a session of the protocol that has no process of its own may go
// without a request: it holds only memory.
const sharedSessionIdle = 30 * time.Minute

// Bounds of the messages for a client that has no stream open.
const (
	maxBacklog      = 64
	maxBacklogBytes = 256 << 10
)

// session is a session of the protocol, of revisions up to 2025-11-25.
type session struct {
	id     string
	s      *Server
	tenant string
	owner  string
	host   *host // of the session, or shared by the tenant's

	mu     sync.Mutex
	out    *queue // for a GET
	open   bool   // a GET reads out
	active int
	used   time.Time
	gone   bool
}

// unasked takes a message of the server that belongs to no request, for the stream that is open or, with
// keep, for the next one. It reports false if the message is lost.
func (t *session) unasked(m *message, keep bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return (t.open || keep) && t.out.push(m.encode())
}

// backlog returns a queue that nobody reads yet.
func backlog(a account) *queue {
	q := newQueue(a)
	q.limit(maxBacklog, maxBacklogBytes)
	return q
}

// listen opens the stream of a GET, in place of an older one. The caller calls stop.
func (t *session) listen() (q *queue, stop func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open {
		t.out.end(nil)
		t.out = newQueue(t.out.account)
	}
	q = t.out
	q.limit(maxQueued, maxQueuedBytes)
	t.open = true
	if t.gone {
		q.end(nil)
	}
	return q, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		q.drop()
		if t.out == q && !t.gone {
			t.out, t.open = backlog(q.account), false
		}
	}
}

// tenantServer is a server as one tenant uses it.
type tenantServer struct{ tenant, server string }

// sharedHost returns the host of a server that the clients of a tenant share.
func (g *Gateway) sharedHost(s *Server, tenant string) *host {
	key := tenantServer{tenant, s.Name}
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.hosts[key]
	if h == nil {
		h = g.newHost(s, place{box: boxOf(s, ""), process: processID, greet: true, unasked: func(m *message, _ bool) bool { g.fanOut(key, m); return true }})
		g.hosts[key] = h
	}
	return h
}

// fanOut passes a message of a shared server to all sessions of the tenant. Requests and log messages are
// for one client, so they are not for all.
func (g *Gateway) fanOut(key tenantServer, m *message) {
	if m.method == "notifications/message" {
		return
	}
	g.mu.Lock()
	var all []*session
	for _, t := range g.sessions {
		if t.tenant == key.tenant && t.s.Name == key.server {
			all = append(all, t)
		}
	}
	g.mu.Unlock()
	for _, t := range all {
		t.unasked(m, true)
	}
}

// newSession returns a session of the protocol with one request in progress, which nobody finds yet.
func (g *Gateway) newSession(s *Server, who Caller, id string) *session {
	t := &session{id: id, s: s, tenant: who.Tenant, owner: who.owner(), active: 1, out: backlog(account{g.held, who.Tenant})}
	if s.Mode == ModeSession {
		t.host = g.newHost(s, place{box: boxOf(s, id), process: processID, owner: t.owner, unasked: t.unasked})
	} else {
		t.host = g.sharedHost(s, who.Tenant)
	}
	return t
}

// keepSession makes t known. It ends the session that was not used for the longest time if there are too
// many, and reports false if all have requests in progress.
func (g *Gateway) keepSession(t *session) bool {
	g.mu.Lock()
	n := 0
	var oldest *session
	for _, other := range g.sessions {
		if other.tenant != t.tenant || other.s != t.s {
			continue
		}
		n++
		other.mu.Lock()
		if other.active == 0 && (oldest == nil || other.used.Before(oldest.used)) {
			oldest = other
		}
		other.mu.Unlock()
	}
	full := n >= t.s.MaxSessions
	keep := !full || oldest != nil
	if keep = keep && !g.closed && g.sessions[t.id] == nil; keep {
		g.sessions[t.id] = t
	}
	g.mu.Unlock()
	if keep && full {
		g.endSession(oldest)
	}
	return keep
}

// useSession begins a request in a session of the caller; nil: there is none. The caller calls doneSession.
// A session that an earlier gateway had, with a process of its own, goes on.
func (g *Gateway) useSession(ctx context.Context, s *Server, who Caller, id string) *session {
	g.mu.Lock()
	t := g.sessions[id]
	g.mu.Unlock()
	if t == nil && s.Mode == ModeSession && isID(id) {
		unlock, err := g.adopting.LockContext(ctx, id)
		if err != nil {
			return nil
		}
		defer unlock()
		g.mu.Lock()
		t = g.sessions[id] // another request may have been faster
		g.mu.Unlock()
		if t == nil {
			return g.adoptSession(ctx, s, who, id)
		}
	}
	if t == nil || t.owner != who.owner() || t.s != s {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return nil
	}
	t.active++
	return t
}

// adoptSession returns the session whose process runs already; nil: there is none.
func (g *Gateway) adoptSession(ctx context.Context, s *Server, who Caller, id string) *session {
	t := g.newSession(s, who, id)
	_, err := t.host.use(ctx, who, true)
	t.host.release()
	if err == nil && g.keepSession(t) {
		return t
	}
	t.host.end(true)
	t.out.drop()
	return nil
}

func isID(id string) bool {
	return len(id) == 26 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// doneSession ends a request in a session.
func (g *Gateway) doneSession(t *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.active--
	t.used = time.Now()
}

// endSession ends a session, with the process if that is its own.
func (g *Gateway) endSession(t *session) {
	g.mu.Lock()
	if g.sessions[t.id] == t {
		delete(g.sessions, t.id)
	}
	g.mu.Unlock()
	t.mu.Lock()
	t.gone = true
	if t.out.end(nil); !t.open {
		t.out.drop()
	}
	t.mu.Unlock()
	if t.s.Mode == ModeSession {
		g.going(func() { t.host.end(false) })
	}
}

// sweepInterval is how often sessions that were not used are looked for.
const sweepInterval = time.Second

// sweep ends sessions without requests, until the gateway closes.
func (g *Gateway) sweep() {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-tick.C:
		}
		g.mu.Lock()
		var old []*session
		for _, t := range g.sessions {
			limit := sharedSessionIdle
			if t.s.Mode == ModeSession {
				limit = t.s.Idle
			}
			t.mu.Lock()
			if t.active == 0 && time.Since(t.used) >= limit {
				old = append(old, t)
			}
			t.mu.Unlock()
		}
		g.mu.Unlock()
		for _, t := range old {
			g.endSession(t)
		}
	}
}
