package door

import (
	"context"
	"net/http"

	"github.com/boxd/boxd/langbot/protocol"
)

// Backend performs the actions. Its methods are called concurrently.
type Backend interface {
	// Do performs one action and returns the data of its reply. ctx ends with the
	// connection. Do itself checks the context of the request against c.Instance().
	Do(ctx context.Context, c *Conn, r protocol.Request) (any, error)
	// Opened is called before the first Do of a connection, and Closed after its last Do has
	// returned. The backend may keep state of the connection in c.Value.
	Opened(c *Conn)
	Closed(c *Conn)
	// Relay serves the WebSocket of a managed process to an authenticated client. physical
	// belongs to c (Context.Owns). Relay itself answers 400 if there is no such process.
	Relay(w http.ResponseWriter, r *http.Request, c protocol.Context, physical, process string)
	// Live returns the body of /healthz.
	Live() any
	// Ready returns the body of /readyz, and whether the server is ready.
	Ready(ctx context.Context) (body any, ready bool)
	// Current returns the current generation of a workspace, if the workspace is known.
	Current(instance, workspace string) (int64, bool)
}

// Conn is one connection that carries actions.
type Conn struct {
	// Remote is the address of the peer, for logs.
	Remote string
	// Value belongs to the Backend, which sets it in Opened and does not change it afterwards.
	Value any

	instance string
}

// Instance returns the instance that the door, or this connection, is pinned to. The context
// of each request must name it.
func (c *Conn) Instance() string { return c.instance }

// NewConn returns a Conn without a door, for tests of a Backend.
func NewConn(instance string) *Conn { return &Conn{instance: instance} }
