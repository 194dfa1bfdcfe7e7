package agent

import (
	"testing"

	"github.com/boxd/boxd/agent/wire"
)

// live returns an agent with one managed process, number 1, that was never started.
func live(t *testing.T) *agent {
	t.Helper()
	tab := new(table)
	a := &agent{managed: tab, reaper: newReaper(tab.exited)}
	a.nursery = newNursery(a.reaper)
	p, child, err := newManaged(&wire.LaunchMsg{Key: "k", Ring: wire.MinRing}, nil)
	if err != nil {
		t.Fatal(err)
	}
	closeFDs(child[:])
	if failed := tab.add(p); failed != nil {
		t.Fatal(failed)
	}
	p.pid = 1 << 30
	t.Cleanup(func() {
		p.in.abandon()
		p.close()
	})
	return a
}

// marshaler is a message.
type marshaler interface{ Marshal() []byte }

// A frame that breaks a rule ends the connection; one that comes too late does not.
func TestHandle(t *testing.T) {
	a := live(t)
	c, p := newTestClient(t)
	go func() {
		for {
			if _, err := p.Receive(); err != nil {
				return
			}
		}
	}()
	for name, f := range map[string]struct {
		typ  byte
		id   uint32
		body marshaler
		ok   bool
	}{
		"watch":                {wire.TypeWatch, 1, &wire.WatchMsg{Stream: 1}, true},
		"watch of nobody":      {wire.TypeWatch, 2, &wire.WatchMsg{Stream: 1}, true},
		"release":              {wire.TypeRelease, 1, &wire.ReleaseMsg{Offset: 1 << 40}, true},
		"no such stream":       {wire.TypeRelease, 1, &wire.ReleaseMsg{Stream: 2}, false},
		"input with a gap":     {wire.TypeInput, 1, &wire.InputMsg{Offset: 1, Data: []byte("x")}, false},
		"a window too large":   {wire.TypeInput, 1, &wire.InputMsg{Data: make([]byte, wire.InputWindow+1)}, false},
		"close behind a gap":   {wire.TypeCloseInput, 1, &wire.CloseInputMsg{Offset: 9}, false},
		"resize of no tty":     {wire.TypeResize, 1, &wire.ResizeMsg{Rows: 1}, true},
		"signal":               {wire.TypeManagedSignal, 1, &wire.SignalMsg{Signal: 9}, true},
		"forget what runs":     {wire.TypeForget, 5, &wire.ForgetMsg{Number: 1}, true},
		"list with a body":     {wire.TypeList, 5, &wire.ForgetMsg{}, false},
		"launch without files": {wire.TypeLaunch, 5, &wire.LaunchMsg{Key: "l", Ring: wire.MinRing, Spawn: wire.SpawnMsg{Args: []string{"x"}}}, false},
		"an agent's frame":     {wire.TypeManaged, 1, &wire.ManagedMsg{}, false},
		"unknown":              {200, 1, &wire.ForgetMsg{}, false},
	} {
		frame := &wire.Frame{Type: f.typ, ID: f.id, Body: f.body.Marshal()}
		if ok := a.handle(c, frame); ok != f.ok {
			t.Errorf("%s: %v", name, ok)
		}
	}
}

// FuzzHandle lets an agent carry out arbitrary frames. It may hang up, but must stay alive.
func FuzzHandle(f *testing.F) {
	f.Add(byte(wire.TypeInput), uint32(1), (&wire.InputMsg{Data: []byte("x")}).Marshal())
	f.Add(byte(wire.TypeWatch), uint32(1), (&wire.WatchMsg{}).Marshal())
	f.Add(byte(wire.TypeForget), uint32(1), (&wire.ForgetMsg{Number: 1}).Marshal())
	f.Fuzz(func(t *testing.T, typ byte, id uint32, body []byte) {
		if typ == wire.TypeSpawn {
			return // takes descriptors, or is refused for having none
		}
		a := live(t)
		c, _ := newTestClient(t)
		c.leave() // the answers do not matter
		a.handle(c, &wire.Frame{Type: typ, ID: id, Body: body})
	})
}
