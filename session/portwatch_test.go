package session

import (
	"fmt"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

func listens(port int) engine.Port {
	return engine.Port{Protocol: "tcp", Address: "127.0.0.1", Port: port}
}

// nextPort returns the next event about a port.
func nextPort(t *testing.T, sub *Subscription) string {
	t.Helper()
	for e := range sub.C {
		if e.Type == EventPortOpened || e.Type == EventPortClosed {
			return fmt.Sprintf("%s %s %v %v", e.Type, e.Session, e.Details["port"], e.Details["address"])
		}
	}
	t.Fatal("the subscription ended")
	return ""
}

// TestPortEvents: ports that open and close are events while somebody watches, of the watched tenant
// only, and wake those who wait for a change.
func TestPortEvents(t *testing.T) {
	b := open(t)
	a, other := b.ensure(keyA, policy.Request{}), Key{"other", "o"}
	o := must1(b.Ensure(ctx, Caller{Tenant: "other", Actor: "me"}, other, policy.Request{}))
	sub := b.Subscribe("", 0)
	defer sub.Close()
	b.host.Box(o.Box).Listen(listens(80)) // nobody watches it
	changed := b.PortsChanged(keyA)
	stop := b.WatchPorts("t")
	box := b.host.Box(a.Box)
	box.Listen(listens(8000), engine.Port{Protocol: "udp", Address: "127.0.0.1", Port: 53}, engine.Port{Protocol: "tcp6", Address: "::1", Port: 8000})
	if got := nextPort(t, sub); got != "port-opened a 8000 127.0.0.1" {
		t.Error(got)
	}
	<-changed
	box.Listen(listens(9000))
	for _, want := range []string{"port-closed a 8000 127.0.0.1", "port-opened a 9000 127.0.0.1"} {
		if got := nextPort(t, sub); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	stop()
	stop()
	if list := must1(b.Ports(other)); len(list) != 1 { // which is a look, too
		t.Errorf("%v", list)
	}
	if got := nextPort(t, sub); got != "port-opened o 80 127.0.0.1" {
		t.Error(got)
	}
}

// TestPortsAfterCommand: without anybody who watches, the end of a command is a reason to look once.
func TestPortsAfterCommand(t *testing.T) {
	b := open(t)
	a := b.ensure(keyA, policy.Request{})
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	b.host.Box(a.Box).Listen(listens(8000))
	b.exec(keyA, "true")
	if got := nextPort(t, sub); got != "port-opened a 8000 127.0.0.1" {
		t.Error(got)
	}
}

// TestPortEventsAreBounded: a box that listens on many ports, or opens and closes them all the time,
// does not push other events out.
func TestPortEventsAreBounded(t *testing.T) {
	b := open(t)
	a := b.ensure(keyA, policy.Request{})
	var many []engine.Port
	for port := range 5000 {
		many = append(many, listens(port+1))
	}
	s, box := must1(b.find(keyA)), b.host.Box(a.Box)
	live := must1(b.Peek(keyA))
	first := b.events.last
	for range 30 {
		box.Listen(many...)
		must1(s.lookAtPorts(live))
		box.Listen()
		must1(s.lookAtPorts(live))
	}
	s.mu.Lock()
	known := len(s.ports.known)
	s.mu.Unlock()
	if n := b.events.last - first; known > maxKnownPorts || n < portEventBurst || n > keepEvents/2 {
		t.Errorf("%d events, %d known ports", n, known)
	}
}

// TestPortsOfProxy: the listeners of the proxy are none of the box's programs.
func TestPortsOfProxy(t *testing.T) {
	b := newBench(t)
	b.policy.NetworkAvailable = true
	b.start()
	a := b.ensure(keyA, network)
	b.host.Box(a.Box).Listen(listens(3128), listens(1080), listens(8000))
	if got := must1(b.Ports(keyA)); fmt.Sprint(got) != "[{tcp 127.0.0.1 8000}]" {
		t.Errorf("%v", got)
	}
}
