package native

import (
	"errors"
	"math"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

// listing makes the impostor answer the List of an adoption with one process, whose slot the
// box knows.
func (i *impostor) listing(m *wire.ManagedMsg, rings ...testRing) {
	i.acts.Go(func() {
		f, err := i.conn.Receive()
		if err != nil || f.Type != wire.TypeList {
			return
		}
		f.Close()
		files := make([]*os.File, len(rings))
		for n, r := range rings {
			files[n] = r.File
		}
		i.say(frame(wire.TypeManaged, f.ID, m, files...), frame(wire.TypeListed, f.ID, &wire.ListedMsg{Count: 1}))
	})
}

// TestHostileAgentReleased: an agent cannot make a reader continue after the end of the
// output, nor at an offset that is too large.
func TestHostileAgentReleased(t *testing.T) {
	testutil.Long(t)
	for name, c := range map[string]struct {
		floor, head uint64
		released    [2]uint64
		lie         bool
	}{
		"nothing":               {0, 0, [2]uint64{0, 0}, false},
		"all":                   {0, 5, [2]uint64{5, 5}, false},
		"less than is kept":     {3, 5, [2]uint64{1, 2}, false},
		"more than there is":    {0, 5, [2]uint64{6, 0}, true},
		"more on the other one": {0, 5, [2]uint64{0, 6}, true},
		"far more":              {0, 5, [2]uint64{1 << 40, 0}, true},
		"more than can be":      {0, 5, [2]uint64{math.MaxUint64, 0}, true},
		"negative":              {0, 5, [2]uint64{1 << 63, 0}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b, i := withManagedImpostor(t)
			rings := []testRing{newTestRing(t, wire.MinRing, ringSeals), newTestRing(t, wire.MinRing, ringSeals)}
			for _, r := range rings {
				r.set(c.floor, c.head)
			}
			i.listing(describe(func(m *wire.ManagedMsg) { m.Released = c.released }), rings...)
			within(t, "listing", func() {
				list := &question{typ: wire.TypeList}
				err := b.managed.ask(list, nil)
				if (err != nil) != c.lie || err != nil && !errors.Is(err, engine.ErrBoxLost) {
					t.Errorf("%v, want a lie %v", err, c.lie)
				}
				if err == nil {
					io := list.listed[0].outputs
					if got := [2]int64{io[0].Released(), io[1].Released()}; got != [2]int64{int64(c.released[0]), int64(c.released[1])} {
						t.Errorf("released %d, want %d", got, c.released)
					}
					close(list.listed[0].known) // as an adoption does
					list.listed[0].slot = new(slot)
					list.listed[0].slot.begin()
				}
				i.acts.Wait()
			})
		})
	}
}

// withOutput has an impostor list a process with rings of that size, and returns the ring of its stdout, with 1000 bytes,
// and the output that reads it.
func withOutput(t *testing.T, size int64) (*box, *impostor, testRing, *output) {
	t.Helper()
	b, i := withManagedImpostor(t)
	out, errs := newTestRing(t, size, ringSeals), newTestRing(t, size, ringSeals)
	out.set(0, 1000)
	i.listing(describe(func(m *wire.ManagedMsg) { m.Ring = uint64(size) }), out, errs)
	list := &question{typ: wire.TypeList}
	if err := b.managed.ask(list, nil); err != nil {
		t.Fatal(err)
	}
	i.acts.Wait()
	p := list.listed[0]
	close(p.known)
	p.slot = new(slot)
	p.slot.begin()
	return b, i, out, p.outputs[0]
}

// TestReleaseIsTold: the agent learns of the first Release at once, of several that follow
// soon in one message, and of the last one in any case.
func TestReleaseIsTold(t *testing.T) {
	b, i, out, o := withOutput(t, 1<<20)
	told := make(chan uint64, 1000)
	i.acts.Go(func() {
		for {
			f, err := i.conn.Receive()
			if err != nil {
				return
			}
			var m wire.ReleaseMsg
			if f.Type != wire.TypeRelease || m.Unmarshal(f.Body) != nil || m.Stream != wire.Stdout {
				t.Errorf("%+v", f)
			}
			told <- m.Offset
		}
	})
	next := func() uint64 {
		select {
		case n := <-told:
			return n
		case <-time.After(time.Minute):
			t.Fatal("the agent is not told")
			return 0
		}
	}
	o.Release(10)
	if n := next(); n != 10 {
		t.Errorf("first %d", n)
	}
	began := time.Now()
	for off := int64(11); off <= 500; off++ {
		o.Release(off)
	}
	frames := 0
	for next() != 500 {
		frames++
	}
	if most := int(time.Since(began)/releaseDelay) + 1; frames > most {
		t.Errorf("%d frames, want at most %d", frames, most)
	}
	for _, c := range []struct{ off, want int64 }{{400, 500}, {-1, 500}, {501, 501}, {5000, 1000}, {math.MaxInt64, 1000}} {
		o.Release(c.off)
		if got := o.Released(); got != c.want {
			t.Errorf("Release(%d): %d, want %d", c.off, got, c.want)
		}
	}
	for next() != 1000 {
	}
	// The last message of a client that closes.
	out.set(0, 1200)
	o.Release(1100)
	o.Release(1200)
	tellReleases([]*box{b})
	for next() != 1200 {
	}
}

// TestReleaseInFlight: a client that closes waits for a message that is being sent, and had to wait for its turn.
func TestReleaseInFlight(t *testing.T) {
	b, i, _, o := withOutput(t, wire.MinRing)
	o.Release(10)
	// More than the socket takes, so that what follows waits until it is read.
	i.acts.Go(func() { b.managed.tell(wire.TypeInput, 99, make([]byte, wire.MaxBody)) })
	await := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	await("nothing fills the socket", func() bool {
		queued, err := unix.IoctlGetInt(int(i.sock.Fd()), unix.TIOCINQ)
		return err == nil && queued > 1000
	})
	o.mu.Lock()
	o.told = time.Now().Add(200 * time.Millisecond) // so that the next message has to wait, however long it took to get here
	o.mu.Unlock()
	o.Release(20)
	await("the delay does not end", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.sent == 20
	})
	var last uint64
	i.acts.Go(func() {
		for {
			f, err := i.conn.Receive()
			if err != nil {
				return
			}
			var m wire.ReleaseMsg
			if f.Type == wire.TypeRelease && m.Unmarshal(f.Body) == nil {
				last = m.Offset
			}
		}
	})
	tellReleases([]*box{b})
	b.managed.conn.Close()
	i.acts.Wait()
	if last != 20 {
		t.Errorf("the agent was told of %d, want 20", last)
	}
}
