package api

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// inside is the listener of the connections that the daemon's own doors open with
// [Server.Connect].
type inside struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// insideConn is the server's end of a connection whose caller is known.
type insideConn struct {
	net.Conn
	caller Caller
}

// Connect returns a connection to this server, as if caller had opened it, for a door that speaks
// another protocol and is a client of the API. Requests on it have the rights, quotas and rates of the
// caller, but do not count as requests: the one that the door serves has counted. After Shutdown it
// fails with http.ErrServerClosed.
func (s *Server) Connect(ctx context.Context, caller Caller) (net.Conn, error) {
	s.insideOnce.Do(func() {
		l := &inside{conns: make(chan net.Conn), closed: make(chan struct{})}
		srv, err := s.newHTTP(nil, s)
		if err != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.streams.Err() != nil { // Shutdown may be waiting for insideEnd already
			return
		}
		s.insideEnd.Go(func() { _ = serveOn(srv, l, nil) }) // Accept fails only after Shutdown
		s.inside = l
	})
	if s.inside == nil {
		return nil, http.ErrServerClosed
	}
	near, far := net.Pipe()
	select {
	case s.inside.conns <- &insideConn{far, caller}:
		return near, nil
	case <-s.inside.closed:
		return nil, http.ErrServerClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (l *inside) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *inside) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *inside) Addr() net.Addr { return insideAddr{} }

type insideAddr struct{}

func (insideAddr) Network() string { return "inside" }
func (insideAddr) String() string  { return "inside" }
