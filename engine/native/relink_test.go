package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// fakeLauncher is the other end of one connection of a link.
type fakeLauncher struct {
	t    *testing.T
	conn *wire.Conn
}

// newFakeLink returns a link that dials fake launchers, which come over the channel.
func newFakeLink(t *testing.T) (*link, chan *fakeLauncher) {
	t.Helper()
	launchers := make(chan *fakeLauncher, 10)
	dial := func(context.Context) (*wire.Conn, error) {
		ours, theirs, err := wire.Pair()
		if err != nil {
			return nil, err
		}
		conn, err := wire.FileConn(theirs)
		if err != nil {
			return nil, err
		}
		launchers <- &fakeLauncher{t, conn}
		return ours, nil
	}
	first, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := newLink(first, linkOptions{dial: dial})
	t.Cleanup(func() {
		l.close()
		close(launchers)
		for f := range launchers {
			f.conn.Close()
		}
	})
	return l, launchers
}

// receive returns the next request.
func (f *fakeLauncher) receive(typ byte, request any) uint32 {
	frame, err := f.conn.Receive()
	if err != nil {
		f.t.Errorf("receiving a request of type %d: %v", typ, err)
		return 0
	}
	if frame.Type != typ {
		f.t.Errorf("request of type %d, want %d", frame.Type, typ)
	}
	if err := json.Unmarshal(frame.Body, request); err != nil {
		f.t.Error(err)
	}
	return frame.ID
}

func (f *fakeLauncher) reply(id uint32, body any) {
	text, err := json.Marshal(rpc.Reply{Body: body})
	if err := errors.Join(err, f.conn.Send(rpc.TypeReply, id, text)); err != nil {
		f.t.Error(err)
	}
}

// TestRelink: a request that was lost with its launcher is sent to the next one, marked as
// repeated if that makes a difference.
func TestRelink(t *testing.T) {
	l, launchers := newFakeLink(t)
	done := make(chan error, 1)
	go func() {
		var list rpc.List
		_, err := l.call(t.Context(), rpc.TypeUpdate, rpc.Update{ID: "b"}, &list)
		done <- err
	}()
	var u rpc.Update
	for n := range 3 {
		f := <-launchers
		id := f.receive(rpc.TypeUpdate, &u)
		if u.Again != (n > 0) {
			t.Errorf("try %d: again %v", n, u.Again)
		}
		if n == 2 {
			f.reply(id, nil)
			defer f.conn.Close()
			break
		}
		f.conn.Close()
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestRelinkCreate: a Create that was interrupted is not repeated.
func TestRelinkCreate(t *testing.T) {
	l, launchers := newFakeLink(t)
	done := make(chan error, 1)
	create := rpc.Create{Spec: engine.Spec{ID: "b"}}
	go func() {
		_, err := l.call(t.Context(), rpc.TypeCreate, create, nil)
		done <- err
	}()
	f := <-launchers
	f.receive(rpc.TypeCreate, &rpc.Create{})
	f.conn.Close()
	if err := <-done; !errors.Is(err, errLost) || !errors.Is(err, engine.ErrNoLauncher) {
		t.Errorf("create that was lost: %v", err)
	}
}

// TestRelinkOrphan: a box whose caller has given up is removed even if its launcher is lost
// before it could answer.
func TestRelinkOrphan(t *testing.T) {
	l, launchers := newFakeLink(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	create := rpc.Create{Spec: engine.Spec{ID: "b"}}
	go func() {
		_, err := l.call(ctx, rpc.TypeCreate, create, nil)
		done <- err
	}()
	f := <-launchers
	f.receive(rpc.TypeCreate, &rpc.Create{})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("create that was given up: %v", err)
	}
	f.conn.Close()
	f = <-launchers
	defer f.conn.Close()
	var b rpc.Box
	if f.receive(rpc.TypeRemove, &b); b.ID != "b" {
		t.Errorf("box %q is removed", b.ID)
	}
}

// TestManyRemoves: the launcher gets a limited number of Removes at a time, so that it can
// carry out other requests. A Remove that is given up before its turn is still carried out.
func TestManyRemoves(t *testing.T) {
	l, launchers := newFakeLink(t)
	f := <-launchers
	defer f.conn.Close()
	var wg sync.WaitGroup
	var b rpc.Box
	replies := []uint32{}
	for n := range maxRemovals {
		wg.Go(func() {
			if err := l.remove(t.Context(), fmt.Sprint(n)); err != nil {
				t.Error(err)
			}
		})
		replies = append(replies, f.receive(rpc.TypeRemove, &b))
	}
	ctx, cancel := context.WithCancel(t.Context())
	givenUp := make(chan error)
	go func() { givenUp <- l.remove(ctx, "late") }()
	var last error
	wg.Go(func() { last = l.remove(t.Context(), "last") })

	answered := make(chan error)
	go func() {
		_, err := l.call(t.Context(), rpc.TypeKill, rpc.Kill{}, nil)
		answered <- err
	}()
	f.reply(f.receive(rpc.TypeKill, &rpc.Kill{}), nil)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-givenUp; !errors.Is(err, context.Canceled) {
		t.Errorf("a Remove that was given up: %v", err)
	}
	if id := f.receive(rpc.TypeRemove, &b); id != 0 || b.ID != "late" {
		t.Errorf("frame %d removes %q, want the box that was given up, and no reply", id, b.ID)
	}
	for _, id := range replies {
		f.reply(id, nil)
	}
	id := f.receive(rpc.TypeRemove, &b)
	if b.ID != "last" {
		t.Errorf("the last Remove is of %q", b.ID)
	}
	f.reply(id, nil)
	wg.Wait()
	if last != nil {
		t.Error(last)
	}
}

// TestEventsMerge: an event that was not received is merged into the next one of its kind,
// and the sender does not wait.
func TestEventsMerge(t *testing.T) {
	e := newEvents()
	for n := range int64(100) {
		e.send(engine.Event{Kind: engine.EventOOM, Count: n})
		e.send(engine.Event{Kind: engine.EventPIDs, Count: 2 * n})
	}
	e.close()
	e.close()
	e.send(engine.Event{Kind: engine.EventOOM}) // dropped
	got := map[engine.EventKind]int64{}
	for event := range e.ch {
		got[event.Kind] = event.Count
	}
	if len(got) != 2 || got[engine.EventOOM] != 99 || got[engine.EventPIDs] != 198 {
		t.Errorf("events: %v", got)
	}
}

// TestRelinkUnsent: requests that were not sent completely before the launcher was lost,
// including Creates, are sent to the next one.
func TestRelinkUnsent(t *testing.T) {
	l, launchers := newFakeLink(t)
	for n := range 50 {
		f := <-launchers
		f.conn.Close()
		done := make(chan error, 1)
		go func() {
			_, err := l.call(t.Context(), rpc.TypeCreate, rpc.Create{Spec: engine.Spec{ID: "b"}}, nil)
			done <- err
		}()
		f = <-launchers
		f.reply(f.receive(rpc.TypeCreate, new(rpc.Create)), nil)
		if err := <-done; err != nil {
			t.Fatalf("create %d: %v", n, err)
		}
		f.conn.Close()
	}
}

// TestRelinkUnsentIsNoOrphan: a box whose Create was not sent is not removed when the next
// launcher is there, which may be making it by then.
func TestRelinkUnsentIsNoOrphan(t *testing.T) {
	l, launchers := newFakeLink(t)
	f := <-launchers
	defer f.conn.Close()
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	id, _, err := l.register(conn)
	if err != nil {
		t.Fatal(err)
	}
	l.unsent(conn, id)
	f = <-launchers
	defer f.conn.Close()
	done := make(chan error, 1)
	go func() {
		_, err := l.call(t.Context(), rpc.TypePing, struct{}{}, nil)
		done <- err
	}()
	f.reply(f.receive(rpc.TypePing, new(struct{})), nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestRequestTooLong: a request that is too long fails, and does not affect others on the
// connection.
func TestRequestTooLong(t *testing.T) {
	l, launchers := newFakeLink(t)
	f := <-launchers
	defer f.conn.Close()
	labels := map[string]string{"x": strings.Repeat("<", wire.MaxBody/4)} // six bytes each as JSON
	_, err := l.call(t.Context(), rpc.TypeCreate, rpc.Create{Spec: engine.Spec{ID: "b", Labels: labels}}, nil)
	if !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("too long a request: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := l.call(t.Context(), rpc.TypePing, struct{}{}, nil)
		done <- err
	}()
	f.reply(f.receive(rpc.TypePing, new(struct{})), nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestEventsBeforeAdoption: the client that adopts a box gets the events from the time
// without a client.
func TestEventsBeforeAdoption(t *testing.T) {
	c := &core{boxes: map[*box]struct{}{}}
	for n := range int64(3) {
		c.event(rpc.Event{Box: "b", Kind: engine.EventOOM, Count: n})
		c.event(rpc.Event{Box: "other", Kind: engine.EventOOM, Count: 9})
	}
	c.event(rpc.Event{Box: "b", Kind: engine.EventPIDs, Count: 7})
	b := &box{id: "b", events: newEvents()}
	c.adopt(b)
	got := map[engine.EventKind]int64{}
	for range 2 {
		e := <-b.events.ch
		got[e.Kind] = e.Count
	}
	if got[engine.EventOOM] != 2 || got[engine.EventPIDs] != 7 {
		t.Errorf("events: %v", got)
	}
	for n := range 3 * maxEarly {
		c.event(rpc.Event{Box: fmt.Sprint(n), Kind: engine.EventOOM})
	}
	if len(c.early) > maxEarly {
		t.Errorf("events of %d boxes are kept", len(c.early))
	}
}

// TestReleaseNowEnds: a slot that is released at once keeps no caller whose context has ended, and is
// released nevertheless.
func TestReleaseNowEnds(t *testing.T) {
	l, launchers := newFakeLink(t)
	f := <-launchers
	defer f.conn.Close()
	s := &slots{link: l, box: "b", outlive: true, taken: map[*slot]struct{}{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.releaseNow(ctx, &slot{name: "7"}) }()
	for try := range 2 {
		var ask rpc.Slots
		id := f.receive(rpc.TypeSlots, &ask)
		if len(ask.Used) != 1 || ask.Used[0] != "7" {
			t.Errorf("try %d: %+v", try, ask)
		}
		if try == 0 { // the launcher does not answer
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want that the context has ended", err)
			}
		} else {
			f.reply(id, []rpc.Slot{})
		}
	}
	s.wg.Wait()
}

// TestGivingUpSaysWhy: who gives up while there is no launcher learns what the attempts to reach one met.
func TestGivingUpSaysWhy(t *testing.T) {
	ours, theirs, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gaveUp := errors.New("gave up")
	attempts := 0
	l := newLink(ours, linkOptions{dial: func(context.Context) (*wire.Conn, error) {
		if attempts++; attempts == 3 {
			cancel(gaveUp)
		}
		return nil, errors.New("launcher.yaml:1: wrong")
	}})
	defer l.close()
	theirs.Close()
	if _, err := l.call(ctx, rpc.TypePing, struct{}{}, nil); !errors.Is(err, gaveUp) || !strings.Contains(err.Error(), "launcher.yaml:1: wrong") {
		t.Error(err)
	}
}
