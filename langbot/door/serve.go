package door

import (
	"container/list"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bounds for clients that are not authenticated yet.
const (
	headerTime   = 10 * time.Second
	headerBytes  = 16 << 10
	idleTime     = 60 * time.Second
	maxStrangers = 512
)

// Serve answers requests from l, with TLS unless config is nil. It returns nil after
// Shutdown. It closes l.
func (d *Door) Serve(l net.Listener, config *tls.Config) error {
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"http/1.1"} // net/http offers no WebSockets over HTTP/2
		l = tls.NewListener(l, config)
	}
	strangers := &strangers{places: map[net.Conn]*list.Element{}, order: list.New(), most: maxStrangers}
	s := &http.Server{
		Handler: d, ReadHeaderTimeout: headerTime, MaxHeaderBytes: headerBytes, IdleTimeout: idleTime,
		ConnContext: d.connContext, ConnState: strangers.changed, ErrorLog: slog.NewLogLogger(d.o.Logger.Handler(), slog.LevelDebug),
	}
	d.mu.Lock()
	open := !d.stopped && d.servers != nil
	if open {
		d.servers[s] = struct{}{}
	}
	d.mu.Unlock()
	if !open {
		l.Close()
		return nil
	}
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("LangBot's door: %w", err)
	}
	return nil
}

// strangers bounds the connections that were not upgraded (yet). When there are too many,
// the oldest is closed: a client that only opens connections displaces its own, and a
// client with a request sends it at once.
type strangers struct {
	most int

	mu     sync.Mutex
	places map[net.Conn]*list.Element
	order  *list.List // of net.Conn, oldest first
}

// changed is an http.Server's ConnState.
func (s *strangers) changed(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	if e := s.places[c]; e != nil {
		s.order.Remove(e)
		delete(s.places, c)
	}
	var victim net.Conn
	if state != http.StateHijacked && state != http.StateClosed {
		s.places[c] = s.order.PushBack(c)
		if s.order.Len() > s.most {
			victim = s.order.Remove(s.order.Front()).(net.Conn)
			delete(s.places, victim)
		}
	}
	s.mu.Unlock()
	if victim != nil {
		victim.Close() // without the lock, because TLS writes an alert
	}
}
