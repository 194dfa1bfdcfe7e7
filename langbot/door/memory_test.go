package door

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/protocol"
)

// tight makes the kernel buffer little in either direction, so that a peer that does not
// read is noticed soon, and many such peers cost the machine little.
type tight struct{ net.Listener }

func (l tight) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		c.(*net.TCPConn).SetReadBuffer(64 << 10)
		c.(*net.TCPConn).SetWriteBuffer(64 << 10)
	}
	return c, err
}

// serveTight is serve for many connections that share m.
func serveTight(t *testing.T, m *Memory, b Backend, change ...func(*times)) (*Door, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, tight{l}, b, Options{MaxConnections: 1000, Memory: m, PerConnection: true}, change...)
}

// dialRude is dialRaw for a client that disconnects without a close frame, and buffers
// little.
func dialRude(t *testing.T, addr string) *raw {
	t.Helper()
	c := dialRaw(t, addr, "/rpc/ws")
	c.Conn.(*net.TCPConn).SetWriteBuffer(64 << 10)
	c.Conn.(*net.TCPConn).SetLinger(0)
	return c
}

// sized returns replies whose length in bytes is the name of the action.
func sized(_ context.Context, _ *Conn, r protocol.Request) (any, error) {
	var n int
	fmt.Sscan(r.Action, &n)
	return map[string]string{"x": blob[:n]}, nil
}

var blob = strings.Repeat("x", 7<<20)

// eventually waits for a state that no event announces.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testutil.Patience()); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not seen: ", what)
		}
	}
}

// wantEmpty checks that everything was given back, without waiting: a connection that has
// ended has given back all that it had.
func (m *Memory) wantEmpty(t *testing.T, most int) {
	t.Helper()
	m.asking.wantEmpty(t)
	m.waiting.wantEmpty(t)
	r := &m.reading
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free != most || len(r.holders) != 0 || len(r.waiting) != 0 || r.peak > most {
		t.Errorf("%d of %d turns are free, %d taken, at most %d were, %d wait", r.free, most, len(r.holders), r.peak, len(r.waiting))
	}
}

func (r *readers) count() (holders, waiting int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.holders), len(r.waiting)
}

// count returns the number of actions performed.
func (b *backend) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done
}

// actions returns the number of actions under way on all connections.
func (d *Door) actions() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		c.mu.Lock()
		n += c.actions
		c.mu.Unlock()
	}
	return n
}

// ask requests an action that has to succeed.
func ask(t *testing.T, ws *websocket.Conn, msg string) {
	t.Helper()
	send(t, ws, msg)
	if a := recv(t, ws); a.Code != 0 {
		t.Fatalf("got %s", a.Message)
	}
}

// unfinished returns 15 MiB of a message that does not end.
var unfinished = sync.OnceValue(func() []byte { return frame(0x01, bytes.Repeat([]byte("x"), 15<<20)) })

// TestUnfinishedMessages: 200 connections send most of a message. No more of that is in
// memory than the limit, and short messages of others are served.
func TestUnfinishedMessages(t *testing.T) {
	const most, attackers = 3, 200
	m := newMemory(most, 64<<20, 1<<20)
	b := newBackend(nil)
	_, addr := serveTight(t, m, b, func(t *times) { t.turn, t.wait = time.Hour, time.Hour })
	victim := dial(t, addr, false)
	var all []*raw
	for range attackers {
		c := dialRude(t, addr)
		all = append(all, c)
		go c.Write(unfinished()) // sends only a part, or finishes
	}
	eventually(t, "as many are read as can be, all others wait", func() bool {
		holders, waiting := m.reading.count()
		return holders == most && waiting == attackers-most
	})
	for i := range 50 {
		ask(t, victim, request(i, "x"))
	}
	ask(t, victim, string(message(own)))
	send(t, victim, string(message(1<<20))) // is read when its turn comes
	eventually(t, "a long message of a good client waits", func() bool {
		_, waiting := m.reading.count()
		return waiting == attackers-most+1
	})
	for _, c := range all {
		c.Close()
	}
	if a := recv(t, victim); a.Code != 0 {
		t.Errorf("got %s", a.Message)
	}
	victim.Close()
	for range attackers + 1 {
		<-b.over
	}
	m.wantEmpty(t, most)
}

// TestTurns: when others wait, a connection whose turn is over is closed, with a reason.
func TestTurns(t *testing.T) {
	const most, attackers = 2, 7
	m := newMemory(most, 64<<20, 1<<20)
	b := newBackend(nil)
	_, addr := serveTight(t, m, b, func(t *times) { t.turn, t.wait, t.linger = 200*time.Millisecond, time.Hour, 200*time.Millisecond })
	alone := dialRaw(t, addr, "/rpc/ws")
	alone.write(fragments(message(1<<20), 2, 0)[:600<<10])
	eventually(t, "one is read", func() bool { n, _ := m.reading.count(); return n == 1 })
	var all []*raw
	for range attackers {
		c := dialRude(t, addr)
		all = append(all, c)
		go c.Write(unfinished())
	}
	eventually(t, "others wait", func() bool { _, n := m.reading.count(); return n > 0 })
	victim := dial(t, addr, false)
	ask(t, victim, string(message(1<<20)))
	first, payload := alone.read()
	if reason := payload[2:]; first != 0x88 || binary.BigEndian.Uint16(payload) != 1013 || string(reason) != errTurn.Error() {
		t.Errorf("got frame %#x %q", first, payload)
	}
	for _, c := range append(all, alone) {
		c.Close()
	}
	victim.Close()
	for range attackers + 2 {
		<-b.over
	}
	m.wantEmpty(t, most)
}

// TestWaitingEnds: the wait for a turn is bounded, and ends when the server stops.
func TestWaitingEnds(t *testing.T) {
	m := newMemory(0, 1<<20, 1<<20)
	b := newBackend(nil)
	_, addr := serveTight(t, m, b, func(t *times) { t.wait, t.linger = 50*time.Millisecond, 200*time.Millisecond })
	c := dialRaw(t, addr, "/rpc/ws")
	c.write(frame(0x81, message(own+1)))
	c.wantClose(1013, "too many long messages at once")
	<-b.over
	d, addr := serveTight(t, m, b)
	c = dialRaw(t, addr, "/rpc/ws")
	c.write(frame(0x81, message(own+1)))
	eventually(t, "it waits", func() bool { _, n := m.reading.count(); return n == 1 })
	go d.Close(websocket.CloseGoingAway, stopReason)
	c.wantClose(1001, stopReason)
	<-b.over
	m.wantEmpty(t, 0)
}

// TestRequestsOfAll: the requests under way of all connections are bounded together. Later
// connections find less room, but always some; those of another instance find more.
func TestRequestsOfAll(t *testing.T) {
	const clients, each = 11, 20
	m := newMemory(4, 2<<20, 1<<20)
	begun, release := make(chan struct{}), make(chan struct{})
	b := newBackend(func(_ context.Context, _ *Conn, r protocol.Request) (any, error) {
		if len(r.Data) > 1<<10 {
			begun <- struct{}{}
			<-release
		}
		return nil, nil
	})
	_, addr := serveTight(t, m, b)
	small := dial(t, addr, false)
	refused := make(chan string)
	var readers sync.WaitGroup
	var under []int
	var all []*websocket.Conn
	for i := range clients {
		instance := "i"
		if i == clients-1 {
			instance = "another"
		}
		ws := dial(t, addr, false, instanceHeader, instance)
		all = append(all, ws)
		readers.Go(func() {
			for {
				var a answer
				if ws.ReadJSON(&a) != nil {
					return
				}
				if a.Code != 0 {
					refused <- a.Message
				}
			}
		})
		n := 0
		for range each {
			send(t, ws, string(message(50_000))) // occupies 64 KiB of memory
			select {
			case <-begun:
				n++
			case text := <-refused:
				if text != "BoxError: "+errAll.Text {
					t.Errorf("got %s", text)
				}
			}
		}
		under = append(under, n)
		ask(t, small, request(i, "x"))
		m.asking.check(t)
	}
	if want := []int{9, 5, 3, 2, 1, 1, 1, 1, 1, 1, 5}; !slices.Equal(under, want) { // one is private, then half of the rest
		t.Errorf("begun were %v, want %v", under, want)
	}
	close(release)
	small.Close()
	for _, ws := range all {
		ws.Close()
	}
	readers.Wait()
	for range clients + 1 {
		<-b.over
	}
	m.wantEmpty(t, 4)
}
