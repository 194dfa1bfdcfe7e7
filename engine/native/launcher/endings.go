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
	// maxEnding is how many boxes may be ending at a time, and maxLate how many more may take
	// longer than lateTime. Together with the boxes whose deferred work the kernel has not
	// done yet, they stay below 64.
	maxEnding = 32
	maxLate   = 16
	// freeTime is how long a box counts as ending after PID 1 has ended. The kernel's work
	// takes about 50 µs once it begins; 20 ms were too short on an emulated machine.
	freeTime = 100 * time.Millisecond
	// lateTime is how long a box may keep others from ending. A box that SIGKILL does not
	// reach then takes one of the maxLate places, for at most removeTime. On a machine so slow
	// that every box takes longer, these places are full and the machine sets the pace.
	lateTime = time.Second
)

// turns bounds how many boxes are ending.
type turns struct{ ending, late chan struct{} }

func newTurns(ending, late int) *turns {
	return &turns{make(chan struct{}, ending), make(chan struct{}, late)}
}

// endings are the turns of this process.
var endings = newTurns(maxEnding, maxLate)

// turn is the turn of one box to end.
type turn struct {
	late  chan struct{}
	timer *time.Timer

	mu    sync.Mutex
	place chan struct{} // the channel that counts it; nil once it was given back
}

// takeTurn waits for a turn to end a box. The caller gives it back when PID 1 has ended, or
// when it stops waiting for that.
func (t *turns) takeTurn(ctx context.Context) (*turn, error) {
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

// makeWay moves the turn to the late ones if there is room; otherwise it retries later.
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

// give gives the turn back. It does not wait: the place becomes free after freeTime. Further
// calls do nothing.
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

// A launcher that dies gives no turns to the boxes that end with it. They end in waves
// instead, each waveTime after the one before. Their commands are killed at once, so nothing is
// lost by taking long. Ending a box costs the kernel about 1 ms of processor time, and 10 ms on
// an emulated machine; a slower wave overlaps the next one.
const (
	waveSize = 32
	waveTime = 400 * time.Millisecond
)

// waves assigns the boxes that end with this process to waves of waveSize.
type waves struct {
	mu    sync.Mutex
	boxes []int // by wave
}

// place is the place of a box in a wave. The zero place means none.
type place struct {
	of   *waves
	wave int
}

// takePlace takes a place in the first wave that has a free one.
func (w *waves) takePlace() place {
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

// leave gives the place back. Further calls do nothing.
func (t *place) leave() {
	if t.of == nil {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.boxes[t.wave]--
	t.of = nil
}

// linger is how many milliseconds the agent of a box waits before it ends when its launcher
// has died.
func (t place) linger() uint32 { return uint32(t.wave) * uint32(waveTime/time.Millisecond) }
