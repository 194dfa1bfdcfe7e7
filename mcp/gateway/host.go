package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/client"
)

// endPatience bounds how long a process may take to be removed. Its box ends by itself if that fails.
const endPatience = time.Minute

// host keeps one process of a server, for all clients of a tenant or for one session of the protocol. It
// starts the process when it is used, and ends it when it is not.
type host struct {
	g  *Gateway
	s  *Server
	at place

	lock chan struct{} // has room for one: who holds it may use p
	p    *process      // nil: there is none

	mu     sync.Mutex
	active int // requests in progress
	used   time.Time
	timer  *time.Timer
	closed bool
}

func (g *Gateway) newHost(s *Server, at place) *host {
	return &host{g: g, s: s, at: at, lock: make(chan struct{}, 1)}
}

// use returns the process, which it starts if there is none. The caller calls release in any case.
func (h *host) use(ctx context.Context, who Caller, adopt bool) (*process, error) {
	h.mu.Lock()
	h.active++
	if h.timer != nil {
		h.timer.Stop()
	}
	h.mu.Unlock()
	select {
	case h.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, h.s.failed(PhaseStart, context.Cause(ctx))
	}
	defer func() { <-h.lock }()
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if h.g.ctx.Err() != nil || closed {
		return nil, h.s.failed(PhaseStart, errStopping)
	}
	if h.p != nil {
		f := h.p.lost()
		if f == nil {
			return h.p, nil
		}
		h.p.detach()
		h.p = nil
		if h.s.Mode == ModeShared { // other sessions of the protocol know nothing of the process of one
			h.g.startsOf(h.s, who.Tenant).lost(f)
		}
	}
	// Others may be waiting for the same process, so it does not end with this client.
	at := h.at
	at.adopt = adopt
	p, err := h.g.open(h.g.ctx, h.s, who, at)
	if err != nil {
		return nil, err
	}
	h.p = p
	return p, nil
}

var errStopping = errors.New("it is being ended")

// release ends a use. Without another one the process ends after the idle time.
func (h *host) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.active--
	h.used = time.Now()
	if h.active > 0 || h.closed {
		return
	}
	if h.timer == nil {
		h.timer = time.AfterFunc(h.s.Idle, func() { h.g.going(h.idle) })
	} else {
		h.timer.Reset(h.s.Idle)
	}
}

// idle ends the process unless it was used meanwhile.
func (h *host) idle() {
	h.lock <- struct{}{}
	defer func() { <-h.lock }()
	h.mu.Lock()
	busy := h.active > 0 || time.Since(h.used) < h.s.Idle || h.closed
	h.mu.Unlock()
	if busy || h.p == nil {
		return
	}
	h.g.remove(h.p, h.at)
	h.p = nil
}

// end ends the process for good, or with detach leaves it to another gateway.
func (h *host) end(detach bool) {
	h.mu.Lock()
	h.closed = true
	if h.timer != nil {
		h.timer.Stop()
	}
	h.mu.Unlock()
	h.lock <- struct{}{}
	defer func() { <-h.lock }()
	if h.p == nil {
		return
	}
	if detach {
		h.p.detach()
	} else {
		h.g.remove(h.p, h.at)
	}
	h.p = nil
}

// remove removes a process, with its box if that is its own, and detaches from it.
func (g *Gateway) remove(p *process, at place) {
	g.removeAt(p.c, p.s, at)
	p.detach()
}

// removeAt removes what runs at a place, with its box if that is its own.
func (g *Gateway) removeAt(c *client.Client, s *Server, at place) {
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	var err error
	if at.owner != "" {
		err = c.Remove(ctx, at.box)
	} else {
		err = c.RemoveProcess(ctx, at.box, at.process)
	}
	if err != nil && !isGone(err) {
		g.opt.Logger.Warn("mcp: ending a server", "server", s.Name, "session", at.box, "error", err)
	}
}

// processID is the ID of the process of a server, in its box.
const processID = "mcp"

// once runs a request in a process of its own.
func (g *Gateway) once(ctx context.Context, s *Server, who Caller, use func(*process) error) error {
	at := place{box: boxOf(s, ""), process: processID + "-" + newID()[:12], greet: true}
	p, err := g.open(ctx, s, who, at)
	if err != nil {
		return err
	}
	defer g.going(func() { g.remove(p, at) })
	return use(p)
}

// BoxID is the ID of the session of the tenant in which a server runs, unless its mode is ModeSession.
func (s *Server) BoxID() string { return "mcp-" + s.Name }

// boxOf returns the ID of the box of a server, or of one of its sessions of the protocol.
func boxOf(s *Server, session string) string {
	if session == "" {
		return s.BoxID()
	}
	return s.BoxID() + "-" + session
}

// newID returns an ID of 26 of a-z and 2-7 that nobody guesses.
func newID() string { return strings.ToLower(rand.Text()) }
