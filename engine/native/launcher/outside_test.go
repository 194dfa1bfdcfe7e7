package launcher

import (
	"testing"
	"time"

	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
)

// TestKilledOutside: a kill is reported for the command that it has ended, not for a later one in the same slot.
func TestKilledOutside(t *testing.T) {
	now := linux.Monotonic()
	b := new(box)
	b.outside.killed = map[string]time.Duration{"c1": now}
	for _, c := range []struct {
		slot  string
		began time.Duration
		want  bool
	}{
		{"c1", now - time.Second, true},
		{"c1", now - 1, true},
		{"c1", now + 1, false},
		{"c1", 0, true},
		{"c2", now - time.Second, false},
	} {
		answer, _, err := b.handleOutside(rpc.Outside{Slot: c.slot, Age: time.Second, Began: c.began})
		if held, ok := answer.(rpc.OutsideHeld); !ok || err != nil || held.Killed != c.want {
			t.Errorf("%+v: %+v, %v", c, answer, err)
		}
	}
}
