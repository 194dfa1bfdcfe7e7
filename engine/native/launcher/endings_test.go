package launcher

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurns: a turn that is given back counts until the kernel has freed the program. Boxes
// that take long make way for others while there are places for them.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ending, late = 2, 3
		turns := newTurns(ending, late)
		var taken []*turn
		take := func(want time.Duration) *turn {
			t.Helper()
			began := time.Now()
			u, err := turns.takeTurn(t.Context())
			if took := time.Since(began); err != nil || took != want {
				t.Fatalf("turn %d after %v, %v, want it after %v", len(taken), took, err, want)
			}
			taken = append(taken, u)
			return u
		}
		take(0).give()
		take(0)
		take(freeTime) // the place of the first
		for i := range late {
			want := lateTime - freeTime // after the second
			if i%ending == 1 {
				want = freeTime
			}
			take(want)
		}
		// All places are taken, by boxes that do not end.
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := turns.takeTurn(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a turn beyond all places: %v", err)
		}
		// One of the late ones ends: one of the others makes way at its next look.
		taken[1].give()
		taken[1].give() // twice is once
		began := time.Now()
		if _, err := turns.takeTurn(t.Context()); err != nil || time.Since(began) > freeTime+lateTime {
			t.Errorf("a turn after %v, %v", time.Since(began), err)
		}
		if _, err := turns.takeTurn(ctx); err == nil {
			t.Error("a place was given back twice")
		}
	})
}

// TestWaves: a place that becomes free is taken again, so that boxes that come and go do not
// gather in one wave.
func TestWaves(t *testing.T) {
	var w waves
	var places []place
	for range 3 * waveSize {
		places = append(places, w.takePlace())
	}
	for i, p := range places {
		if want := uint32(i/waveSize) * 400; p.linger() != want {
			t.Errorf("box %d lingers %d ms, want %d", i, p.linger(), want)
		}
	}
	places[waveSize].leave()
	places[waveSize].leave() // twice is once
	first, second := w.takePlace(), w.takePlace()
	if first.wave != 1 || second.wave != 3 {
		t.Errorf("the next two are in waves %d and %d, want 1 and 3", first.wave, second.wave)
	}
	var none place
	none.leave()
	if none.linger() != 0 {
		t.Error("a box of a service lingers")
	}
}
