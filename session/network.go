package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
	"golang.org/x/time/rate"
)

// A box has no interface but loopback, with or without a network. A session with a network has a
// proxy of this process on two ports of its box's loopback, and variables that lead programs to it.
// The proxy ends with the box, with this process, and for good when the session becomes sensitive;
// a manager that takes the box over serves a new one.

// openNetwork serves the proxy of box by r, if r has a network and the proxy is not there yet. After
// an error the box has none. The caller holds the op, so that nobody removes the box meanwhile.
func (s *session) openNetwork(ctx context.Context, box engine.LiveBox, r policy.Resolved) error {
	s.mu.Lock()
	open, spent := s.proxy != nil, s.record.NetworkBytes
	s.mu.Unlock()
	if !r.Network || open {
		return nil
	}
	config := s.m.options.Egress
	config.Spent = spent
	var err error
	if config.Rules, err = s.m.policy.NetworkRules(s.key.Tenant, r); err != nil {
		return err
	}
	seen := newNetworkLog(s, box.ID())
	config.Admit, config.Observe = seen.admit, seen.observe
	sometimes := &rate.Sometimes{First: 1, Interval: time.Minute}
	config.Trouble = func(err error) { // whose text is for administrators: the session's own errors are its tenant's
		sometimes.Do(func() {
			s.m.report(Key{}, "", fmt.Sprintf("network of session %q of tenant %q: %v", s.key.ID, s.key.Tenant, err))
		})
	}
	proxy, err := egress.New(config)
	if err != nil {
		return err
	}
	networked, ok := box.(engine.Networked)
	if !ok {
		return errors.New("this engine gives boxes no network: create the session with network false")
	}
	listeners, err := networked.Listen(ctx, egress.Addresses()...)
	if err != nil {
		return fmt.Errorf("opening the network: %w", causeOf(ctx, err))
	}
	s.mu.Lock()
	if s.record.Sensitive != nil { // meanwhile: ratchet.session found no proxy to shut
		proxy.Shut()
	}
	s.proxy, s.seen, s.networkOff = proxy, seen, ""
	s.mu.Unlock()
	ok = s.m.spawn(func() {
		s.serveNetwork(proxy, listeners)
		seen.finish()
	})
	if ok {
		return nil
	}
	s.closeNetwork()
	for _, l := range listeners {
		l.Close()
	}
	return ErrClosed
}

// serveNetwork serves listeners in the box until proxy is shut, or the manager closes. If a listener
// fails, the session has no proxy until an update or the next manager opens it again.
func (s *session) serveNetwork(proxy *egress.Proxy, listeners []net.Listener) {
	defer context.AfterFunc(s.m.ctx, proxy.Shut)()
	var wg sync.WaitGroup
	for _, l := range listeners {
		wg.Go(func() {
			if err := proxy.Serve(l.(*net.TCPListener)); !errors.Is(err, egress.ErrShut) {
				s.m.report(s.key, "", "its network is off: "+err.Error())
				s.setNetworkOff(err)
				proxy.Shut()
			}
		})
	}
	wg.Wait()
	s.mu.Lock()
	if s.proxy == proxy && s.record.Sensitive == nil {
		s.closeNetworkLocked()
	}
	s.mu.Unlock()
	proxy.Wait()
}

// reopenNetwork is openNetwork for a box that was taken over. If the policy does not allow the network
// any more, the box is without one; after any other error it is without one until a later attempt
// succeeds. The caller holds the op.
func (s *session) reopenNetwork(ctx context.Context, box engine.LiveBox) {
	open := func(ctx context.Context) error {
		s.mu.Lock()
		r := s.resolvedLocked()
		s.mu.Unlock()
		err := s.openNetwork(ctx, box, r)
		if s.goesWithout(err) {
			return nil
		}
		return err
	}
	err := open(ctx)
	if err == nil || s.ctx.Err() != nil { // the session is being removed, or the manager closes
		return
	}
	s.m.report(s.key, "", "its network stays off (it will be retried): "+err.Error())
	s.setNetworkOff(err)
	s.m.spawn(func() {
		s.m.retry(func(ctx context.Context) error {
			if err := s.lockOp(ctx); err != nil {
				return nil // closing
			}
			defer s.unlockOp()
			s.mu.Lock()
			stale := s.box != box || s.removing || isDone(box.Done())
			s.mu.Unlock()
			if stale {
				return nil
			}
			return open(ctx)
		})
	})
}

// goesWithout reports whether err of openNetwork means that the session goes on without a network, as its
// profile, its tenant or the daemon allows none any more, and then reports that to the operator.
func (s *session) goesWithout(err error) bool {
	if !errors.Is(err, policy.ErrDenied) && !errors.Is(err, engine.ErrInvalid) {
		return false
	}
	s.m.report(s.key, "", "its network stays off: "+err.Error())
	s.setNetworkOff(err)
	return true
}

// setNetworkOff notes why the box has no network, until openNetwork succeeds.
func (s *session) setNetworkOff(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.networkOff = err.Error()
}

// changeNetwork gives the network of the session the rules of r. If that fails, there is none until
// an update opens it again.
func (s *session) changeNetwork(r policy.Resolved) {
	set, err := s.m.policy.NetworkRules(s.key.Tenant, r)
	s.mu.Lock()
	proxy := s.proxy
	s.mu.Unlock()
	if proxy == nil {
		return
	}
	if err == nil {
		err = proxy.SetRules(set)
	}
	if err != nil {
		s.closeNetwork()
		s.setNetworkOff(err)
		s.m.report(s.key, "", "its network is off: "+err.Error())
	}
}

// closeNetwork ends the network of a box that is about to be removed, or is gone.
func (s *session) closeNetwork() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeNetworkLocked()
}

func (s *session) closeNetworkLocked() {
	if s.proxy != nil {
		s.proxy.Shut()
		s.record.NetworkBytes = s.proxy.Spent()
		s.proxy = nil
	}
}

// noteNetworks records the bytes that boxes have moved over their networks since they were recorded last.
// It waits for no write; an error is for those who do.
func (m *Manager) noteNetworks() {
	for _, s := range m.all("") {
		s.mu.Lock()
		settled := s.recording == nil || isDone(s.recording.done) && s.recording.err == nil
		if s.proxy != nil && settled && !s.removing && s.aliveLocked() && s.proxy.Spent() != s.record.NetworkBytes {
			r := s.recordLocked()
			s.record.NetworkBytes = r.NetworkBytes
			m.store.enqueue(r.put())
		}
		s.mu.Unlock()
	}
}
