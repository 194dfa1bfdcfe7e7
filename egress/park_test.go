package egress

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine/spec"
)

// parkedOf is how many directions of a box are parked.
func parkedOf(b *box) (n int) {
	parking.mu.Lock()
	defer parking.mu.Unlock()
	for _, d := range parking.waiting {
		if d.f.p == b.Proxy {
			n++
		}
	}
	return n
}

// TestParked: the directions of tunnels that move nothing are parked. They go on with the next byte, and end as others
// do: with the stream, with the network, with the rules, and after their idle time.
func TestParked(t *testing.T) {
	w := shop(t)
	limits := rules.Limits{Connections: 64}
	b := w.box(Config{Rules: rules.Rules{Allow: []string{"shop.example:7", "other.example:7"}, Limits: limits}})
	others := w.box(Config{Rules: allowing("shop.example:7")})
	elsewhere, _ := others.tunnel("shop.example:7")
	var all []*net.TCPConn
	for range 20 {
		c, _ := b.tunnel("shop.example:7")
		all = append(all, c)
	}
	lost, _ := b.tunnel("other.example:7")
	parked := func(b *box, n int) func() bool { return func() bool { return parkedOf(b) == n } }
	eventually(t, "all directions are parked", parked(b, 42))
	echoed := func(c *net.TCPConn, text string) {
		t.Helper()
		got := make([]byte, len(text))
		io.WriteString(c, text)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	for range 3 { // parked anew each time
		for _, c := range all {
			echoed(c, "woken")
		}
		eventually(t, "all directions are parked again", parked(b, 42))
	}

	// The end of one direction reaches the server, whose end comes back.
	all[0].CloseWrite()
	if rest, err := io.ReadAll(all[0]); err != nil || len(rest) != 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	b.await(func(c Connection) bool { return c.Ended && c.Reason == "" })
	// A reset by the program ends the tunnel.
	all[1].SetLinger(0)
	all[1].Close()
	b.await(func(c Connection) bool { return c.Ended && c.Reason != "" })
	eventually(t, "two tunnels are gone", parked(b, 38))

	if err := b.SetRules(rules.Rules{Allow: []string{"shop.example:7"}, Limits: limits}); err != nil {
		t.Fatal(err)
	}
	if n, err := lost.Read(make([]byte, 1)); err == nil {
		t.Errorf("a tunnel that the rules forbid moves %d bytes", n)
	}
	b.await(func(c Connection) bool { return c.Ended && c.Name == "other.example" })
	b.Shut()
	for _, c := range all[2:] {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("without a network, a tunnel moves %d bytes", n)
		}
	}
	b.Wait()

	eventually(t, "the other box's tunnel is parked", parked(others, 2))
	echoed(elsewhere, "here")
	eventually(t, "the other box's tunnel is parked again", parked(others, 2))
	others.Shut()
	others.Wait()
	parking.mu.Lock()
	defer parking.mu.Unlock()
	if parking.epoll != nil || len(parking.waiting) != 0 {
		t.Errorf("%d directions are parked at the end", len(parking.waiting))
	}
}

// TestShutParked: after Shut no byte of a parked tunnel moves, also none that the kernel had taken for a program that
// does not read, and every such tunnel ends at both sides.
func TestShutParked(t *testing.T) {
	w := shop(t)
	const queued = receiveBuffer // more than a program's queue takes, and less than both queues
	servers, counted := make(chan *net.TCPConn, 40), make(chan bool)
	w.place(public1+":9", w.sink(func(c *net.TCPConn) {
		var kind [1]byte
		io.ReadFull(c, kind[:])
		if kind[0] == 'q' {
			c.Write(make([]byte, queued))
		}
		servers <- c
		io.Copy(io.Discard, struct{ io.Reader }{c})
		servers <- c
		<-counted // then it is closed
	}))
	t.Cleanup(func() { close(counted) })
	b := w.box(Config{Rules: allowing("shop.example:9")})
	var clients []*net.TCPConn
	open := func(kind string) {
		c, r := b.tunnel("shop.example:9")
		if r.StatusCode != 200 {
			t.Fatal(r.Status)
		}
		c.SetReadBuffer(4 << 10)
		io.WriteString(c, kind)
		clients = append(clients, c)
	}
	for range 10 {
		open("idle")
		open("queue")
	}
	var ends []*net.TCPConn
	for range clients {
		ends = append(ends, <-servers)
	}
	// A direction waits while the queue is full, and is parked when the rest fits.
	eventually(t, "all directions are parked", func() bool { return parkedOf(b) == 2*len(clients) })
	moving := 0
	parking.mu.Lock()
	for _, d := range parking.waiting {
		if !d.still {
			moving++
		}
	}
	parking.mu.Unlock()
	if moving != 10 {
		t.Errorf("the kernel has bytes to send in %d parked directions, want 10", moving)
	}
	b.Shut()
	ends = append(ends, clients...)
	var before []uint64
	for _, c := range ends {
		before = append(before, received(t, c))
	}
	for range clients {
		<-servers // its connection has ended
	}
	for _, c := range clients {
		if _, err := io.Copy(io.Discard, struct{ io.Reader }{c}); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the end of a tunnel for the program: %v", err)
		}
	}
	for i, c := range ends {
		if after := received(t, c); after != before[i] {
			t.Errorf("connection %d: %d bytes when Shut had returned, %d afterwards", i, before[i], after)
		}
	}
	b.Wait()
}

// TestParkedIdle: a parked tunnel ends after its idle time, by the timer alone.
func TestParkedIdle(t *testing.T) {
	w := shop(t)
	b := w.box(Config{Rules: allowing("shop.example:7")})
	b.now.Load().set.Limits.Idle = 400e6 // shorter than the rules allow
	begin := time.Now()
	c, _ := b.tunnel("shop.example:7")
	eventually(t, "the tunnel is parked", func() bool { return parkedOf(b) == 2 })
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes", n)
	}
	if got := b.await(func(c Connection) bool { return c.Ended }); got.Reason != errIdle.Error() || time.Since(begin) < 400*time.Millisecond {
		t.Errorf("%+v after %v", got, time.Since(begin))
	}
}

// TestParkedIdleShortened: a tunnel that is parked ends after the idle time of new rules, if that is shorter.
func TestParkedIdleShortened(t *testing.T) {
	w := shop(t)
	r := allowing("shop.example:7")
	b := w.box(Config{Rules: r})
	c, _ := b.tunnel("shop.example:7")
	eventually(t, "the tunnel is parked", func() bool { return parkedOf(b) == 2 })
	r.Limits.Idle = spec.Duration(time.Second)
	if err := b.SetRules(r); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if got := b.await(func(c Connection) bool { return c.Ended }); got.Reason != errIdle.Error() {
		t.Errorf("%+v", got)
	}
}

// TestClosedWhileParked: a parked direction whose connection is closed here, which is no event for those that wait, ends
// at once.
func TestClosedWhileParked(t *testing.T) {
	w := shop(t)
	b := w.box(Config{Rules: allowing("shop.example:7")})
	c, _ := b.tunnel("shop.example:7")
	eventually(t, "the tunnel is parked", func() bool { return parkedOf(b) == 2 })
	b.Proxy.mu.Lock()
	for f := range b.flows {
		f.client.Close()
		f.remote.Close()
		f.closeLocked("of the test")
	}
	b.Proxy.mu.Unlock()
	b.await(func(c Connection) bool { return c.Ended && c.Reason == "of the test" })
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes", n)
	}
}
