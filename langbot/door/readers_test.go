package door

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"testing"
	"time"
)

// newMeter returns a meter of a connection whose peer sends nothing.
func newMeter(t *testing.T) *meter {
	t.Helper()
	c, peer := net.Pipe()
	t.Cleanup(func() { c.Close(); peer.Close() })
	return &meter{Conn: c, times: &times{silence: time.Hour}}
}

// TestTurnIsOver: a read that timed out at the end of a turn fails with errTurn, even if no
// connection waits for the turn any longer when the error is made.
func TestTurnIsOver(t *testing.T) {
	m := newMeter(t)
	m.setTurnDeadline(time.Now().Add(-time.Second))
	_, err := m.Read(make([]byte, 1))
	m.setTurnDeadline(time.Time{})
	if !errors.Is(err, errTurn) {
		t.Errorf("got %v", err)
	}
}

// TestTurnTakenBack: a read whose turn deadline was lifted continues, and fails with another
// error at another deadline.
func TestTurnTakenBack(t *testing.T) {
	m := newMeter(t)
	m.extend()
	m.setTurnDeadline(time.Now().Add(-time.Second))
	m.setTurnDeadline(time.Time{})
	if err := m.expired(errors.New("x")); err != nil {
		t.Errorf("got %v before the time was over", err)
	}
	m.finalDeadline = time.Now().Add(20 * time.Millisecond)
	if _, err := m.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// wantHurried checks that these meters have a turn deadline, and no others.
func wantHurried(t *testing.T, all []*meter, want ...bool) {
	t.Helper()
	var got []bool
	for _, m := range all {
		m.mu.Lock()
		got = append(got, !m.turnDeadline.IsZero())
		m.mu.Unlock()
	}
	if !slices.Equal(got, want) {
		t.Errorf("in a hurry are %v, want %v", got, want)
	}
}

// TestHurry: as many holders have a deadline as there are connections that wait, those whose
// turns end first.
func TestHurry(t *testing.T) {
	r := &readers{free: 3}
	var meters []*meter
	var turns []*turn
	enter := func(ctx context.Context) (left chan error) {
		m := newMeter(t)
		next := &turn{meter: m, length: time.Hour}
		meters, turns = append(meters, m), append(turns, next)
		left = make(chan error, 1)
		go func() { left <- r.enter(ctx, next, time.Hour) }()
		n := len(turns)
		eventually(t, "it has come", func() bool { holders, waiting := r.count(); return holders+waiting == n })
		return left
	}
	for range 3 {
		if err := <-enter(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantHurried(t, meters, false, false, false)
	first := enter(t.Context())
	wantHurried(t, meters, true, false, false, false)
	ctx, cancel := context.WithCancel(t.Context())
	second := enter(ctx)
	wantHurried(t, meters, true, true, false, false, false)
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	wantHurried(t, meters, true, false, false, false, false)
	r.leave(turns[1]) // a holder without a deadline is done
	if err := <-first; err != nil {
		t.Error(err)
	}
	wantHurried(t, meters, false, false, false, false, false)
	for _, i := range []int{0, 2, 3} {
		r.leave(turns[i])
	}
	if holders, waiting := r.count(); r.free != 3 || holders+waiting != 0 {
		t.Errorf("%d are free, %d held, %d wait", r.free, holders, waiting)
	}
}

// TestTurnsOfInstances: turns rotate among the instances, however many connections of one
// instance have come first.
func TestTurnsOfInstances(t *testing.T) {
	r := &readers{free: 2}
	granted := make(chan *turn)
	come := 0
	enter := func(instance string) {
		next := &turn{meter: newMeter(t), instance: instance, length: time.Hour}
		go func() {
			if r.enter(t.Context(), next, time.Hour) == nil {
				granted <- next
			}
		}()
		come++
		eventually(t, "it has come", func() bool { holders, waiting := r.count(); return holders+waiting == come })
	}
	for range 6 {
		enter("a")
	}
	enter("b")
	enter("b")
	enter("c")
	held := []*turn{<-granted, <-granted}
	var order string
	for range 7 {
		r.leave(held[0])
		next := <-granted
		held = append(held[1:], next)
		order += next.instance
	}
	if want := "abcabaa"; order != want {
		t.Errorf("the order was %s, want %s", order, want)
	}
}

// TestManyOfOneInstance: a long message of another instance does not wait for all of theirs.
func TestManyOfOneInstance(t *testing.T) {
	const attackers = 20
	m := newMemory(1, 64<<20, 1<<20)
	b := newBackend(nil)
	_, addr := serveTight(t, m, b, func(t *times) { t.turn, t.wait = 200*time.Millisecond, time.Hour })
	held := &turn{meter: newMeter(t), length: time.Hour}
	if err := m.reading.enter(t.Context(), held, time.Hour); err != nil {
		t.Fatal(err)
	}
	kv := slices.Clone(upgradeHeaders)
	kv[len(kv)-1] = "greedy"
	for range attackers {
		c := dialRaw(t, addr, "/rpc/ws", kv...)
		c.Conn.(*net.TCPConn).SetLinger(0)
		go c.Write(unfinished())
	}
	victim := dial(t, addr, false)
	eventually(t, "all wait", func() bool { _, n := m.reading.count(); return n == attackers })
	send(t, victim, string(message(1<<20)))
	eventually(t, "one more waits", func() bool { _, n := m.reading.count(); return n == attackers+1 })
	m.reading.leave(held)
	if a := recv(t, victim); a.Code != 0 {
		t.Errorf("got %s", a.Message)
	}
	if _, n := m.reading.count(); n < attackers/2 {
		t.Errorf("%d wait still", n)
	}
}

// TestWaitOfAPing: a peer whose message waits for its turn gets its ping answered in time.
func TestWaitOfAPing(t *testing.T) {
	const patience = 15 * time.Second // LangBot's, for a __ping; 20 seconds for a pong
	if d := defaultTimes; d.wait+d.turn > patience || d.wait <= d.turn {
		t.Errorf("a message waits for %v and is read for %v", d.wait, d.turn)
	}
}
