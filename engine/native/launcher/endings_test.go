package launcher

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurns: a turn that is given back counts until the kernel has freed the program, and
// who waits for one does not wait for ever.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := make(turns, 2)
		for range cap(turns) {
			if err := turns.take(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := turns.take(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third turn of two: %v", err)
		}
		began := time.Now()
		turns.give()
		if err := turns.take(t.Context()); err != nil || time.Since(began) != freeTime {
			t.Errorf("the next turn after %v: %v, want %v", time.Since(began), err, freeTime)
		}
	})
}

// TestWaves: a place that becomes free is taken again, so that boxes that come and go do not
// gather in one wave.
func TestWaves(t *testing.T) {
	var w waves
	var places []place
	for range 3 * waveSize {
		places = append(places, w.take())
	}
	for i, p := range places {
		if want := uint32(i/waveSize) * 400; p.linger() != want {
			t.Errorf("box %d lingers %d ms, want %d", i, p.linger(), want)
		}
	}
	places[waveSize].leave()
	places[waveSize].leave() // twice is once
	first, second := w.take(), w.take()
	if first.wave != 1 || second.wave != 3 {
		t.Errorf("the next two are in waves %d and %d, want 1 and 3", first.wave, second.wave)
	}
	var none place
	none.leave()
	if none.linger() != 0 {
		t.Error("a box of a service lingers")
	}
}
