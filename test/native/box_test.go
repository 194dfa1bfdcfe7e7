package native

import (
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

// TestClose: an engine that is closed takes everything with it.
func TestClose(t *testing.T) {
	dir := stateDir(t)
	e := startIn(t, dir)
	var running []engine.Process
	for range 5 {
		b, err := e.Create(t.Context(), engine.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		running = append(running, begin(t, b, shell("trap '' TERM; sleep 3600 & setsid sleep 3600 & wait")))
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	wantCleanState(t, dir)
	for _, p := range running {
		if r := wait(t, p); r.Verdict != engine.BoxLost {
			t.Errorf("%+v", r)
		}
	}
	if err := e.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if _, err := e.Create(t.Context(), engine.Spec{}); err == nil {
		t.Error("a closed engine makes boxes")
	}
}

// TestIdleBoxes keeps many boxes alive at once.
func TestIdleBoxes(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	var boxes []engine.Box
	seen := map[int]bool{}
	for range 100 {
		b := create(t, e, engine.Spec{})
		base := hostID(t, b)
		if seen[base] || base < 0x70000000 || base >= 0x7fff0000 {
			t.Errorf("box %d has host ids from %d on", len(boxes), base)
		}
		seen[base] = true
		boxes = append(boxes, b)
	}
	for _, b := range boxes {
		wantOutput(t, b, "echo alive", "alive\n")
	}
}
