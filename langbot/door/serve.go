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

// Bounds of what has not yet shown who it is.
const (
	headerTime   = 10 * time.Second
	headerBytes  = 16 << 10
	idleTime     = 60 * time.Second
	maxStrangers = 512
)

// Serve answers requests from l, with TLS unless config is nil, until Shutdown, and
// returns nil then. It closes l.
func (d *Door) Serve(l net.Listener, config *tls.Config) error {
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"http/1.1"} // there are no WebSockets in HTTP/2 here
		l = tls.NewListener(l, config)
	}
	strangers := &strangers{places: map[net.Conn]*list.Element{}, order: list.New(), most: maxStrangers}
	s := &http.Server{
		Handler: d, ReadHeaderTimeout: headerTime, MaxHeaderBytes: headerBytes, IdleTimeout: idleTime,
		ConnContext: d.connContext, ConnState: strangers.changed, ErrorLog: slog.NewLogLogger(d.o.Logger.Handler(), slog.LevelDebug),
	}
	if !d.addServer(s) {
		l.Close()
		return nil
	}
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("LangBot's door: %w", err)
	}
	return nil
}

func (d *Door) addServer(s *http.Server) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped || d.servers == nil {
		return false
	}
	d.servers[s] = struct{}{}
	return true
}

// strangers bounds the connections that were not (yet) upgraded. When there are too
// many, the oldest is cut: who only opens connections displaces himself, and who
// has something to ask does so at once.
type strangers struct {
	most int

	mu     sync.Mutex
	places map[net.Conn]*list.Element
	order  *list.List // of net.Conn, oldest first
}

// changed is an http.Server's ConnState.
func (s *strangers) changed(c net.Conn, state http.ConnState) {
	if victim := s.move(c, state); victim != nil {
		victim.Close() // not under the lock: TLS writes an alert
	}
}

func (s *strangers) move(c net.Conn, state http.ConnState) (victim net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.places[c]; e != nil {
		s.order.Remove(e)
		delete(s.places, c)
	}
	if state == http.StateHijacked || state == http.StateClosed {
		return nil
	}
	s.places[c] = s.order.PushBack(c)
	if s.order.Len() <= s.most {
		return nil
	}
	victim = s.order.Remove(s.order.Front()).(net.Conn)
	delete(s.places, victim)
	return victim
}
