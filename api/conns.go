package api

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// connTable bounds the connections of one listener. When there are too many, it closes the
// oldest connection without a request: first one whose header has not arrived, then an idle
// one. So connections that are merely opened displace each other and not those in use, and
// a new client does not wait behind them.
type connTable struct {
	most int

	mu    sync.Mutex
	conns map[net.Conn]*list.Element // place in fresh or idle; nil: a request is being served
	fresh *list.List                 // of net.Conn, oldest first: no header has arrived
	idle  *list.List                 // of net.Conn, oldest first: between requests
}

func newConnTable(most int) *connTable {
	return &connTable{most: most, conns: map[net.Conn]*list.Element{}, fresh: list.New(), idle: list.New()}
}

// changed is the ConnState of an http.Server.
func (t *connTable) changed(c net.Conn, state http.ConnState) {
	if victim := t.move(c, state); victim != nil {
		victim.Close() // without the lock, because TLS writes an alert
	}
}

// move records the new state of c and returns a connection to close, or nil.
func (t *connTable) move(c net.Conn, state http.ConnState) (victim net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaveLocked(c)
	switch state {
	case http.StateNew:
		if len(t.conns) >= t.most {
			victim = t.victimLocked(c)
		}
		if victim != c {
			t.conns[c] = t.fresh.PushBack(c)
		}
	case http.StateActive:
		t.conns[c] = nil
	case http.StateIdle:
		t.conns[c] = t.idle.PushBack(c)
	}
	return victim
}

// leaveLocked removes c from the table.
func (t *connTable) leaveLocked(c net.Conn) {
	if e := t.conns[c]; e != nil {
		t.fresh.Remove(e) // does nothing if e is in the other list
		t.idle.Remove(e)
	}
	delete(t.conns, c)
}

// victimLocked removes and returns the connection that makes room for c: c itself if all
// others are serving requests.
func (t *connTable) victimLocked(c net.Conn) net.Conn {
	for _, l := range []*list.List{t.fresh, t.idle} {
		if e := l.Front(); e != nil {
			victim := e.Value.(net.Conn)
			t.leaveLocked(victim)
			return victim
		}
	}
	return c
}
