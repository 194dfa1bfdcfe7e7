package langbot

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/boxd/boxd/langbot/door"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

// Server does what clients of the door ask for. It is safe for concurrent use.
type Server struct {
	o        Options
	sessions *session.Manager
	log      *slog.Logger
}

var _ door.Backend = (*Server)(nil)

// New opens the database and takes over what an earlier Server has left.
func New(o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Server{o: o, sessions: o.Sessions, log: o.Logger}, nil
}

// Close ends relays with 1001 and lets go of everything. Sessions and processes stay.
// The doors must be closed before, and Options.Sessions after it.
func (s *Server) Close() error { return nil }

// Do does one action.
func (s *Server) Do(ctx context.Context, c *door.Conn, r protocol.Request) (any, error) {
	return nil, protocol.Errorf(protocol.ValueError, "Action %s not found", r.Action)
}

// Opened prepares a connection.
func (s *Server) Opened(c *door.Conn) {}

// Closed lets go of a connection.
func (s *Server) Closed(c *door.Conn) {}

// Relay serves the WebSocket of a managed process.
func (s *Server) Relay(w http.ResponseWriter, r *http.Request, c protocol.Context, physical, process string) {
}

// Live is the body of /healthz.
func (s *Server) Live() any { return map[string]any{"live": true} }

// Ready is the body of /readyz.
func (s *Server) Ready(ctx context.Context) (any, bool) { return map[string]any{"ready": true}, true }

// Current is the generation of a workspace.
func (s *Server) Current(instance, workspace string) (int64, bool) { return 0, false }
