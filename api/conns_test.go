package api

import (
	"net"
	"net/http"
	"testing"
)

// fakeConn has an identity and records whether it was closed.
type fakeConn struct {
	net.Conn
	closed bool
}

func (c *fakeConn) Close() error { c.closed = true; return nil }

func TestConnTable(t *testing.T) {
	table := newConnTable(3)
	conns := make([]*fakeConn, 8)
	for i := range conns {
		conns[i] = &fakeConn{}
	}
	closed := func() (list []int) {
		for i, c := range conns {
			if c.closed {
				list = append(list, i)
			}
		}
		return list
	}
	step := func(i int, state http.ConnState, want ...int) {
		t.Helper()
		table.changed(conns[i], state)
		got := closed()
		if len(got) != len(want) {
			t.Fatalf("conn %d %v: closed %v, want %v", i, state, got, want)
		}
		for j := range got {
			if got[j] != want[j] {
				t.Fatalf("conn %d %v: closed %v, want %v", i, state, got, want)
			}
		}
	}
	step(0, http.StateNew)
	step(0, http.StateActive)
	step(0, http.StateIdle)
	step(1, http.StateNew)
	step(2, http.StateNew)
	step(3, http.StateNew, 1) // the oldest without a header, not the idle one
	step(1, http.StateClosed, 1)
	step(2, http.StateActive, 1)
	step(3, http.StateActive, 1)
	step(4, http.StateNew, 0, 1) // then the idle one
	step(0, http.StateClosed, 0, 1)
	step(4, http.StateActive, 0, 1)
	step(5, http.StateNew, 0, 1, 5) // all are busy
	step(5, http.StateClosed, 0, 1, 5)
	step(4, http.StateHijacked, 0, 1, 5) // counts no more
	step(6, http.StateNew, 0, 1, 5)
	for _, i := range []int{2, 3, 6} {
		step(i, http.StateClosed, 0, 1, 5)
	}
	if len(table.conns) != 0 || table.fresh.Len() != 0 || table.idle.Len() != 0 {
		t.Errorf("left: %d, %d, %d", len(table.conns), table.fresh.Len(), table.idle.Len())
	}
}
