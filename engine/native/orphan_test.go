package native

import (
	"os"
	"testing"

	"github.com/boxd/boxd/agent/wire"
)

// TestOrphan: a process whose client was gone when it was launched, so that its slot has no
// mark, is not taken over, and does not block others.
func TestOrphan(t *testing.T) {
	for _, ended := range []bool{false, true} {
		b, i := withManagedImpostor(t)
		b.managedSlots = map[string]string{}
		out := newTestRing(t, wire.MinRing, ringSeals)
		i.acts.Go(func() {
			f, err := i.conn.Receive()
			if err != nil || f.Type != wire.TypeList {
				t.Errorf("%+v, %v", f, err)
				return
			}
			i.say(frame(wire.TypeManaged, f.ID, describe(func(m *wire.ManagedMsg) { m.Ended = ended }), []*os.File{out.File, out.File}...),
				frame(wire.TypeListed, f.ID, &wire.ListedMsg{Count: 1}))
			for _, typ := range []byte{wire.TypeManagedSignal, wire.TypeForget} {
				if f, err = i.conn.Receive(); err != nil || f.Type != typ {
					t.Errorf("%+v, %v; want type %d", f, err, typ)
					return
				}
			}
			i.say(wire.Frame{Type: wire.TypeForgotten, ID: f.ID})
		})
		within(t, "finding processes", func() {
			if err := b.takeOver(t.Context(), b.managed); err != nil {
				t.Error(err)
			}
			i.acts.Wait() // before the ring is closed
		})
		if list := b.Managed(); len(list) != 0 {
			t.Errorf("%v", list)
		}
	}
}
