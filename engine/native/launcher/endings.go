package launcher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Ending a box makes the kernel do deferred work, some of it after PID 1 has been reaped. A
// launcher ends at most maxEnding boxes at a time, so that this work stays bounded.

const (
	// maxEnding is how many boxes may be ending at a time; with those for which the kernel is
	// late, fewer than 64.
	maxEnding = 48
	// freeTime is how long after the end of PID 1 a box counts as ending. The kernel takes
	// some 50 µs once it comes to it; 20 ms were too few for an emulated machine.
	freeTime = 100 * time.Millisecond
	// unkillableTime is how long a box that does not end keeps its turn.
	unkillableTime = time.Second
)

// turns bounds how many boxes are ending.
type turns chan struct{}

// endings are those of this process.
var endings = make(turns, maxEnding)

// take waits for a turn to end a box. The caller gives it back when PID 1 has ended, or when
// it waits for that no longer.
func (t turns) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of other boxes: %w", context.Cause(ctx))
	}
}

// give does not wait: the turn is free a moment later.
func (t turns) give() { time.AfterFunc(freeTime, func() { <-t }) }

// When a launcher dies, it gives no more turns to the boxes that end with it: they end
// in waves instead, each waveTime after the one before. Their commands are dead at once, so
// nothing is lost by taking long. The kernel takes about 1 ms of a processor to end a box, and
// 10 ms in an emulated machine; a wave that takes longer meets the next one.
const (
	waveSize = 32
	waveTime = 400 * time.Millisecond
)

// waves places the boxes that end with this process, waveSize in each wave.
type waves struct {
	mu    sync.Mutex
	boxes []int // by wave
}

// place is the place of a box in a wave. The zero place is none.
type place struct {
	of   *waves
	wave int
}

// take takes a place in the first wave that has one.
func (w *waves) take() place {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.boxes, func(n int) bool { return n < waveSize })
	if i < 0 {
		i = len(w.boxes)
		w.boxes = append(w.boxes, 0)
	}
	w.boxes[i]++
	return place{w, i}
}

// leave gives the place back, once.
func (t *place) leave() {
	if t.of == nil {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.boxes[t.wave]--
	t.of = nil
}

// linger is how many milliseconds the agent of a box waits when its launcher is gone.
func (t place) linger() uint32 { return uint32(t.wave) * uint32(waveTime/time.Millisecond) }
