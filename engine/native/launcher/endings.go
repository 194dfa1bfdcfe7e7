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
	// maxEnding is how many boxes may be ending at a time, and maxLate how many more that take
	// longer than lateTime. With those for which the kernel is late after that they are fewer
	// than 64.
	maxEnding = 32
	maxLate   = 16
	// freeTime is how long after the end of PID 1 a box counts as ending. The kernel takes
	// some 50 µs once it comes to it; 20 ms were too few for an emulated machine.
	freeTime = 100 * time.Millisecond
	// lateTime is how long a box keeps others from ending. One that SIGKILL does not reach
	// then takes one of the maxLate places, for removeTime at most. On a machine that is so
	// slow that all take longer, these are full, and the pace is the machine's.
	lateTime = time.Second
)

// turns bounds how many boxes are ending.
type turns struct{ ending, late chan struct{} }

func newTurns(ending, late int) *turns {
	return &turns{make(chan struct{}, ending), make(chan struct{}, late)}
}

// endings are those of this process.
var endings = newTurns(maxEnding, maxLate)

// turn is the turn of one box to end.
type turn struct {
	late  chan struct{}
	timer *time.Timer

	mu    sync.Mutex
	place chan struct{} // where it counts; nil: it was given back
}

// take waits for a turn to end a box. The caller gives it back when PID 1 has ended, or when
// it waits for that no longer.
func (t *turns) take(ctx context.Context) (*turn, error) {
	select {
	case t.ending <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the end of other boxes: %w", context.Cause(ctx))
	}
	u := &turn{late: t.late, place: t.ending}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.timer = time.AfterFunc(lateTime, u.makeWay)
	return u, nil
}

// makeWay moves the turn to the late ones if there is room, or tries again later.
func (u *turn) makeWay() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.place == nil {
		return
	}
	select {
	case u.late <- struct{}{}:
		<-u.place
		u.place = u.late
	default:
		u.timer.Reset(lateTime)
	}
}

// give does not wait: the turn is free a moment later. Giving it twice is giving it once.
func (u *turn) give() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.place == nil {
		return
	}
	u.timer.Stop()
	place := u.place
	u.place = nil
	time.AfterFunc(freeTime, func() { <-place })
}

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
