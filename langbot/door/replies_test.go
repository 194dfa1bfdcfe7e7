package door

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/langbot/protocol"
)

// TestReplyReaders: 100 connections request much and read nothing. They are cut, but not a
// connection that reads.
func TestReplyReaders(t *testing.T) {
	const attackers, each = 100, 20
	m := newMemory(1, 16<<20, 16<<20)
	b := newBackend(sized)
	// All connections count as stalled, even that of the good client, which is spared because
	// it never has the most bytes.
	_, addr := serveTight(t, m, b, func(t *times) { t.stall = 0 })
	victim := dial(t, addr, false)
	var all []*raw
	for i := range attackers {
		c := dialRude(t, addr)
		all = append(all, c)
		c.Write(bytes.Repeat(frame(0x81, []byte(request(1, fmt.Sprint(128<<10)))), each)) // the connection may be cut meanwhile
		ask(t, victim, request(i, "100"))
		ask(t, victim, request(i, fmt.Sprint(100_000)))
	}
	m.waiting.check(t)
	ask(t, victim, request(1, fmt.Sprint(3<<20))) // a peer that accepts long replies is not cut, and finds room
	for range attackers / 2 {                     // 16 MiB and the kernel's buffers are not enough for so many
		<-b.over
	}
	ask(t, victim, request(1, "100"))
	for _, c := range all {
		c.Close()
	}
	victim.Close()
	for range attackers - attackers/2 + 1 {
		<-b.over
	}
	m.wantEmpty(t, 1)
}

// TestCutAtOnce: a connection that is cut gives back its room at once, even if its reader
// waits for its writer to answer a ping.
func TestCutAtOnce(t *testing.T) {
	m := newMemory(1, 1<<20, 16<<20)
	b := newBackend(sized)
	_, addr := serveTight(t, m, b, func(t *times) { t.stall, t.write = 0, time.Hour })
	c := dialRude(t, addr)
	c.write(frame(0x81, []byte(request(1, fmt.Sprint(4_000_000)))))
	c.r.Peek(2) // a reply is being written
	c.write(frame(0x89, []byte("?")))
	ws := dial(t, addr, false)
	ask(t, ws, request(1, fmt.Sprint(3<<20)))
	<-b.over
	ws.Close()
	<-b.over
	m.wantEmpty(t, 1)
}

// TestTooManyReplies: a peer that reads is never cut; it gets refusals.
func TestTooManyReplies(t *testing.T) {
	const clients, each = 20, 20
	m := newMemory(1, 16<<20, 8<<20)
	b := newBackend(sized)
	d, addr := serveTight(t, m, b, func(t *times) { t.stall = time.Hour })
	var all []*websocket.Conn
	for range clients {
		ws := dial(t, addr, false)
		all = append(all, ws)
		for i := range each {
			send(t, ws, request(i, fmt.Sprint(256<<10)))
		}
		send(t, ws, request(each, "1"))
	}
	eventually(t, "all replies are there", func() bool { return b.count() == clients*(each+1) && d.actions() == 0 })
	m.waiting.check(t)
	refused := 0
	for _, ws := range all {
		for range each + 1 {
			switch a := recv(t, ws); {
			case a.Code == 0:
			case a.Message == "BoxError: "+errReplies.Text:
				refused++
				if string(a.Seq) == fmt.Sprint(each) {
					t.Error("a small reply was refused")
				}
			default:
				t.Errorf("got %+v", a)
			}
		}
	}
	for _, ws := range all {
		ask(t, ws, request(1, fmt.Sprint(256<<10))) // there is room again
	}
	if refused == 0 || len(b.over) > 0 {
		t.Errorf("%d were refused, %d cut", refused, len(b.over))
	}
	for _, ws := range all {
		ws.Close()
	}
	for range all {
		<-b.over
	}
	m.wantEmpty(t, 1)
}

// gate is a result whose encoding waits until it is open.
type gate struct {
	open chan struct{}
	now  atomic.Int32 // number of results being encoded
}

func (g *gate) MarshalJSON() ([]byte, error) {
	g.now.Add(1)
	defer g.now.Add(-1)
	<-g.open
	return []byte(`{}`), nil
}

// TestEncoding: few replies are encoded at once, and replies without data do not wait for
// them.
func TestEncoding(t *testing.T) {
	const clients, each = 3, 4
	m := newMemory(1, 1<<20, 1<<20)
	g := &gate{open: make(chan struct{})}
	b := newBackend(func(_ context.Context, _ *Conn, r protocol.Request) (any, error) {
		if r.Action == "__ping" {
			return nil, nil
		}
		return g, nil
	})
	_, addr := serveTight(t, m, b)
	var all []*websocket.Conn
	for range clients {
		ws := dial(t, addr, false)
		all = append(all, ws)
		for i := range each {
			send(t, ws, request(i, "x"))
		}
	}
	gone := dial(t, addr, false)
	send(t, gone, request(1, "x"))
	eventually(t, "all are done, and as many are being encoded as can be", func() bool {
		return b.count() == clients*each+1 && g.now.Load() >= maxEncoding
	})
	ask(t, dial(t, addr, false), request(1, "__ping"))
	gone.Close() // its reply is no longer waiting, or is being encoded
	if n := g.now.Load(); n != maxEncoding {
		t.Errorf("%d are encoded at once", n)
	}
	close(g.open)
	for _, ws := range all {
		for range each {
			if a := recv(t, ws); a.Code != 0 {
				t.Errorf("got %s", a.Message)
			}
		}
		ws.Close()
	}
	for range clients + 1 {
		<-b.over
	}
	if len(m.encoding) != 0 {
		t.Errorf("%d places did not come back", len(m.encoding))
	}
}

// TestStorm: whatever connections do, and however they end, everything is given back.
func TestStorm(t *testing.T) {
	const clients, rounds = 25, 4
	m := newMemory(2, 1<<20, 2<<20)
	b := newBackend(sized)
	_, addr := serveTight(t, m, b, func(t *times) {
		t.turn, t.wait, t.stall, t.linger = 20*time.Millisecond, 100*time.Millisecond, 0, 50*time.Millisecond
	})
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range rounds {
				c := dialRude(t, addr)
				n := rand.IntN(10)
				for range n {
					c.Write(frame(0x81, []byte(request(1, fmt.Sprint(rand.IntN(1<<18))))))
					c.Write(frame(0x81, message(100+rand.IntN(100_000))))
				}
				if rand.IntN(3) == 0 {
					c.Write(unfinished()[:rand.IntN(1<<20)])
				}
				if n > 0 && rand.IntN(2) == 0 {
					c.try()
				}
				if rand.IntN(2) == 0 {
					c.Conn.(*net.TCPConn).SetLinger(-1)
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	for range clients * rounds {
		<-b.over
	}
	m.wantEmpty(t, 2)
}
