package api

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// connTable bounds the connections of one listener. When there are too many, the
// oldest that asks for nothing is cut: first one whose header has not arrived, then
// an idle one. So connections that are only opened displace one another, and not
// those that are used; and a client that comes is not kept waiting behind them.
type connTable struct {
	most int

	mu    sync.Mutex
	conns map[net.Conn]*list.Element // its place in fresh or idle; nil: a request is under way
	fresh *list.List                 // of net.Conn, oldest first: no header yet
	idle  *list.List                 // of net.Conn, oldest first: between requests
}

func newConnTable(most int) *connTable {
	return &connTable{most: most, conns: map[net.Conn]*list.Element{}, fresh: list.New(), idle: list.New()}
}

// changed is an http.Server's ConnState.
func (t *connTable) changed(c net.Conn, state http.ConnState) {
	if victim := t.move(c, state); victim != nil {
		victim.Close() // not under the lock: TLS writes an alert
	}
}

// move notes the new state of c and returns a connection to close, or nil.
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

// leaveLocked takes c out of the table.
func (t *connTable) leaveLocked(c net.Conn) {
	if e := t.conns[c]; e != nil {
		t.fresh.Remove(e) // does nothing if e is of the other list
		t.idle.Remove(e)
	}
	delete(t.conns, c)
}

// victimLocked takes the connection out that has to make room for c; c itself if
// requests are under way on all others.
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
