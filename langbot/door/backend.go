package door

import (
	"context"
	"net/http"

	"github.com/boxd/boxd/langbot/protocol"
)

// Backend does what is asked for. Its methods are called concurrently.
type Backend interface {
	// Do does one action and returns the data of its reply. ctx ends with the connection.
	// It checks the context of the request itself, against c.Instance().
	Do(ctx context.Context, c *Conn, r protocol.Request) (any, error)
	// Opened and Closed tell of a connection before its first Do and after the return
	// of its last one. What the backend keeps per connection it puts into c.Value.
	Opened(c *Conn)
	Closed(c *Conn)
	// Relay serves the WebSocket of a managed process to a client that has shown who it is.
	// physical is a name of c (Context.Owns). It answers 400 itself.
	Relay(w http.ResponseWriter, r *http.Request, c protocol.Context, physical, process string)
	// Live is the body of /healthz.
	Live() any
	// Ready is the body of /readyz, and whether that is a good answer.
	Ready(ctx context.Context) (body any, ready bool)
	// Current is the generation of a workspace, if it has ever been seen.
	Current(instance, workspace string) (int64, bool)
}

// Conn is one connection that carries actions.
type Conn struct {
	// Remote is the address of the peer, for logs.
	Remote string
	// Value belongs to the Backend: set in Opened, it is not changed afterwards.
	Value any

	instance string
}

// Instance is the one that the door, or this connection, is pinned to: all contexts
// have to name it.
func (c *Conn) Instance() string { return c.instance }

// NewConn returns a Conn that belongs to no door, for tests of a Backend.
func NewConn(instance string) *Conn { return &Conn{instance: instance} }
