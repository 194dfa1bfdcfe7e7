package langbot

import (
	"encoding/json"
	"errors"
	"net/http"
	"sync"

	"github.com/boxd/boxd/langbot/linerelay"
	"github.com/boxd/boxd/langbot/protocol"
)

// Close codes of RFC 6455, 7.4.1.
const (
	closeNormal    = 1000
	closeGoingAway = 1001
)

// Relay serves the WebSocket of a managed process, or says why it cannot.
func (s *Server) Relay(w http.ResponseWriter, r *http.Request, at protocol.Context, physical, id string) {
	relay, err := s.relayOf(at, physical, id)
	if err != nil {
		refuse(w, err)
		return
	}
	relay.Serve(w, r)
}

// relayOf finds the relay of a process that runs.
func (s *Server) relayOf(at protocol.Context, physical, id string) (*linerelay.Relay, error) {
	relay, err := s.findRelay(at, physical, id)
	if err == nil { // behind it: an advance that was not seen here finds the relay and shuts it
		err = s.fence.Check(at)
	}
	if err != nil {
		return nil, err
	}
	return relay, nil
}

func (s *Server) findRelay(at protocol.Context, physical, id string) (*linerelay.Relay, error) {
	if err := s.mayRelay(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.boxes[physical]
	if b == nil || b.state != alive || b.at != at {
		return nil, notFound(at, physical)
	}
	p := b.processes[id]
	if p == nil {
		return nil, processNotFound(b, id)
	}
	if p.live == nil || p.live.Live() == nil || !p.runsLocked() {
		return nil, protocol.Errorf(protocol.ManagedProcessConflict, "managed process %s in session %s is not running", id, b.logical())
	}
	if s.closed {
		return nil, protocol.Errorf(protocol.RuntimeUnavailable, "%v", errShutdown)
	}
	if p.relay == nil {
		process := p.live.Live()
		p.relay = linerelay.New(linerelay.Source{
			Stdin: process.Stdio().Stdin, Stdout: process.Stdio().Stdout,
			Done: p.live.Done(), Gone: p.live.Gone(), Hold: process.Hold, Touch: p.live.Touch,
		})
	}
	return p.relay, nil
}

// refuse answers a relay's request that cannot be served. The client tries again at a 400.
func refuse(w http.ResponseWriter, err error) {
	known := protocol.Errorf(protocol.BoxError, "%v", err)
	errors.As(err, &known)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"code": string(known.Class), "message": known.Text}}) // the client's loss
}

// shutRelays ends the relays of a session.
func (s *Server) shutRelays(b *box) {
	for _, p := range s.processesOf(b) {
		s.mu.Lock()
		relay := p.relay
		s.mu.Unlock()
		if relay != nil {
			relay.Shut(closeNormal, "")
		}
	}
}

// closeRelays ends all relays because the server does, and waits for that.
func (s *Server) closeRelays() {
	s.mu.Lock()
	var list []*linerelay.Relay
	for _, b := range s.boxes {
		for _, p := range b.processes {
			if p.relay != nil {
				list = append(list, p.relay)
			}
		}
	}
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, relay := range list {
		wg.Go(func() { relay.Close(closeGoingAway, "Box runtime shutting down") })
	}
	wg.Wait()
}
