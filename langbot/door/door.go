package door

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
)

// Options of a Door.
type Options struct {
	// Token is the secret that clients must show; "" if none is needed.
	Token string
	// Instance is the only one that may connect. "" pins that of the first connection.
	Instance string
	// PerConnection trusts the instance that each connection names, and pins none: for
	// a transport that only LangBot's own user can reach.
	PerConnection bool
	// Logger gets what an operator should know; nil is silence.
	Logger *slog.Logger
	// MaxConnections is the most connections with actions at once; 0 is 256.
	MaxConnections int
}

// Door is an http.Handler for everything under LangBot's address.
type Door struct {
	b Backend
	o Options
}

// New returns a Door to b.
func New(b Backend, o Options) *Door { return &Door{b: b, o: o} }

// Instance returns the instance that is configured or pinned, "" if none is.
func (d *Door) Instance() string { return d.o.Instance }

// Close ends all connections that carry actions with this code and reason, cancels what
// is under way in them, and returns when the last Backend.Closed has. New ones get 503.
func (d *Door) Close(code int, reason string) {}

func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {}

// Serve answers requests from l, with TLS unless config is nil, until Shutdown. It closes l.
func (d *Door) Serve(l net.Listener, config *tls.Config) error { return nil }

// Shutdown is Close with 1001, and ends what Serve has begun.
func (d *Door) Shutdown(ctx context.Context) error { return nil }
