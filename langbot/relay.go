package langbot

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/boxd/boxd/langbot/grants"
	"github.com/boxd/boxd/langbot/linerelay"
	"github.com/boxd/boxd/langbot/protocol"
)

// Close codes of RFC 6455, 7.4.1.
const (
	closeNormal    = 1000
	closeGoingAway = 1001
)

// Relay serves the WebSocket of a managed process, or answers why it cannot.
func (s *Server) Relay(w http.ResponseWriter, r *http.Request, at protocol.Context, physical, id string) {
	relay, err := s.relayOf(at, physical, id)
	if err == nil {
		relay.Serve(w, r)
		return
	}
	known := protocol.Errorf(protocol.BoxError, "%v", err)
	errors.As(err, &known)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(http.StatusBadRequest) // the client tries again
	answer := map[string]any{"error": map[string]string{"code": string(known.Class), "message": known.Text}}
	_ = json.NewEncoder(w).Encode(answer) // best effort
}

// relayOf returns the relay of a running process, if the caller's generation is current.
func (s *Server) relayOf(at protocol.Context, physical, id string) (*linerelay.Relay, error) {
	relay, err := s.findRelay(at, physical, id)
	if err != nil {
		return nil, err
	}
	// Checked after the lookup: an advance that comes later finds the relay and shuts it.
	return relay, s.fence.Check(at)
}

// findRelay returns the relay of a running process, and creates it for the first client.
func (s *Server) findRelay(at protocol.Context, physical, id string) (*linerelay.Relay, error) {
	if policy, _ := s.book.Policy(); policy.Required {
		return nil, grants.ErrProcesses
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

// relaysOf lists the relays of sessions.
func (s *Server) relaysOf(list []*box) (relays []*linerelay.Relay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range list {
		for _, p := range b.processes {
			if p.relay != nil {
				relays = append(relays, p.relay)
			}
		}
	}
	return relays
}

// cutOff shuts the relays of sessions at once, and then removes the sessions.
func (s *Server) cutOff(ctx context.Context, list []*box, reason string) error {
	for _, relay := range s.relaysOf(list) {
		relay.Shut(closeNormal, "")
	}
	return s.endAll(ctx, s.self(), list, reason)
}
