package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Visit describes what a caller wants of a TCP port of a box.
type Visit struct {
	Action string // for the audit log: "preview" or "forward"
	Port   int
	// Trusted callers visit every session. Others visit those that may have a network, see
	// [Manager.MayHaveNetwork].
	Trusted bool
	// Link is the number of [Manager.LinkNumber] for which the caller's link was made, and Expires its
	// end. 0: the caller came without a link.
	Link    uint64
	Expires time.Time
}

// visit is a visit under way. Connections of [Manager.Dial] belong to the visit of their context.
type visit struct {
	Visit
	cancel context.CancelFunc
	ended  chan struct{} // closed by release
}

type visitKey struct{}

// Visit admits a caller to a port of session key, but not to those of the proxy in the box. The session counts as used until the caller
// calls release; calling it again does nothing. The context ends with ctx, with release, when the
// session is removed, when the link of the caller expires or is revoked, and, unless the caller is
// trusted, when the session becomes sensitive: the caller connects, and stays connected, only with
// that context, and then calls release soon. Visit needs no box; see [Manager.Dial].
func (m *Manager) Visit(ctx context.Context, c Caller, key Key, v Visit) (visiting context.Context, release func(), err error) {
	if err := m.enter(); err != nil {
		return nil, nil, err
	}
	s, err := m.findSettled(key)
	if err != nil {
		m.wg.Done()
		return nil, nil, err
	}
	ctx, stop := s.callContext(ctx)
	one := &visit{Visit: v, ended: make(chan struct{})}
	if v.Link != 0 {
		ctx, one.cancel = context.WithDeadline(ctx, v.Expires)
	} else {
		ctx, one.cancel = context.WithCancel(ctx)
	}
	s.mu.Lock()
	u := s.useLocked() // takes the place that enter got
	if err = s.mayVisitLocked(v); err == nil {
		if s.visits == nil {
			s.visits = map[*visit]struct{}{}
		}
		s.visits[one] = struct{}{}
	}
	quiet := v.Link != 0 && err == nil && s.linkLoggedLocked(v)
	s.mu.Unlock()
	release = sync.OnceFunc(func() {
		s.mu.Lock()
		delete(s.visits, one)
		s.mu.Unlock()
		one.cancel()
		stop()
		close(one.ended)
		u.release()
	})
	if err != nil {
		m.deny(c, key, v.Action, err)
	} else if !quiet {
		err = m.audit(c, key, audit.Entry{Action: v.Action, Decision: audit.Allow, Details: v.details()})
		if err == nil && v.Link != 0 {
			s.mu.Lock()
			s.linkSeenLocked(v)
			s.mu.Unlock()
		}
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return context.WithValue(ctx, visitKey{}, one), release, nil
}

func (v *Visit) details() map[string]any {
	d := map[string]any{"port": v.Port}
	if v.Link != 0 {
		d["link_expires"] = v.Expires.UTC().Format(time.RFC3339)
	}
	return d
}

// mayVisitLocked returns nil if the session may be visited by v now.
func (s *session) mayVisitLocked(v Visit) error {
	if err := spec.CheckBoxPort("port", v.Port); err != nil {
		return err
	}
	if v.Trusted && v.Link == 0 {
		return nil
	}
	if err := s.mayHaveNetworkLocked(); err != nil {
		return err
	}
	if v.Link != 0 && v.Link != s.record.Links {
		return &policy.DeniedError{Field: "link", Value: fmt.Sprint(v.Port), Rule: "was revoked, or is of another session: make another"}
	}
	return nil
}

// The requests of a page must not fill the audit log: visits with the same link are logged once in
// linkQuiet. maxLinksSeen bounds the memory of that.
const (
	linkQuiet    = time.Minute
	maxLinksSeen = 1000
)

// linkSeen is a link, and all other links to the port that expire in the same second.
type linkSeen struct {
	port    int
	expires int64
}

// linkLoggedLocked reports whether a visit by this link is in the audit log, and so recent that this one
// is not to be logged.
func (s *session) linkLoggedLocked(v Visit) bool {
	last, ok := s.linksSeen[linkSeen{v.Port, v.Expires.Unix()}]
	return ok && s.m.now()-last < linkQuiet
}

// linkSeenLocked notes that a visit by a link was logged.
func (s *session) linkSeenLocked(v Visit) {
	if s.linksSeen == nil || len(s.linksSeen) >= maxLinksSeen {
		s.linksSeen = map[linkSeen]time.Duration{}
	}
	s.linksSeen[linkSeen{v.Port, v.Expires.Unix()}] = s.m.now()
}

// visitEnds is how long visits that are cut may take to end. Their connections to the box are reset
// before that.
const visitEnds = 5 * time.Second

// cutVisits ends the visits, and the connections to the box, that the session does not admit any
// more. When it returns, no byte of them moves.
func (s *session) cutVisits() {
	var conns []*visitConn
	var cut []*visit
	s.mu.Lock()
	for c := range s.dialled {
		if s.mayVisitLocked(c.visit) != nil {
			conns = append(conns, c)
		}
	}
	for v := range s.visits {
		if s.mayVisitLocked(v.Visit) != nil {
			cut = append(cut, v)
		}
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.reset()
	}
	for _, v := range cut {
		v.cancel()
	}
	late := time.NewTimer(visitEnds)
	defer late.Stop()
	for i, v := range cut {
		select {
		case <-v.ended:
		case <-late.C:
			s.m.report(s.key, "", fmt.Sprintf("%d clients of its ports were cut off from its box, but still have connections to boxd", len(cut)-i))
			return
		}
	}
}

// visitConn is a connection to a port of the box.
type visitConn struct {
	net.Conn
	s     *session
	visit Visit
}

func (c *visitConn) Close() error {
	c.s.mu.Lock()
	delete(c.s.dialled, c)
	c.s.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends one direction.
func (c *visitConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// SetLinger is that of [net.TCPConn].
func (c *visitConn) SetLinger(seconds int) error {
	if tcp, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return tcp.SetLinger(seconds)
	}
	return errors.ErrUnsupported
}

// reset drops what was not delivered yet. Close waits for calls on the connection to end.
func (c *visitConn) reset() {
	c.SetLinger(0)
	c.Close()
}

// WhenBoxEnds makes the manager call f, soon and from any goroutine, when a box of a session has
// ended: connections of Dial to it are dead, and the next ones lead to another box. A later f
// replaces this one.
func (m *Manager) WhenBoxEnds(f func(Key)) { m.boxEnds.Store(&f) }

// Dial connects to a TCP port of the box of session key, for the caller of [Manager.Visit] whose
// context ctx comes from; without one, for a caller who is not trusted. The connection may outlive the
// visit. It is reset when the session does not admit such visits any more. Dial builds no box.
// Errors: ErrNotFound; policy.ErrDenied; engine.ErrBoxLost if the session has no box; those of
// [engine.Networked], among them syscall.ECONNREFUSED; errors.ErrUnsupported.
func (m *Manager) Dial(ctx context.Context, key Key, port int) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := m.findSettled(key)
	if err != nil {
		return nil, err
	}
	var v Visit
	if one, ok := ctx.Value(visitKey{}).(*visit); ok {
		v = one.Visit
	}
	v.Port = port
	s.mu.Lock()
	err = s.mayVisitLocked(v)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	conn, err := s.dial(ctx, port)
	if err != nil {
		return nil, err
	}
	c := &visitConn{conn, s, v}
	s.mu.Lock()
	if err = s.mayVisitLocked(v); err == nil { // otherwise cutVisits has not seen it
		if s.dialled == nil {
			s.dialled = map[*visitConn]struct{}{}
		}
		s.dialled[c] = struct{}{}
	}
	s.mu.Unlock()
	if err != nil {
		c.reset()
		return nil, err
	}
	return c, nil
}

// dial connects to a TCP port of the box, for a caller that was admitted.
func (s *session) dial(ctx context.Context, port int) (net.Conn, error) {
	s.mu.Lock()
	alive, box := s.aliveLocked() && !s.removing, s.box
	s.mu.Unlock()
	if !alive {
		return nil, fmt.Errorf("connecting to port %d of session %q: %w", port, s.key.ID, engine.ErrBoxLost)
	}
	n, ok := box.(engine.Networked)
	if !ok {
		return nil, fmt.Errorf("connecting to port %d of session %q: its engine cannot: %w", port, s.key.ID, errors.ErrUnsupported)
	}
	return n.Dial(ctx, port)
}
