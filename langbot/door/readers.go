package door

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// readers bounds how many long messages are read at once. Who comes when there are
// enough waits: what it sends stays with its peer. Those that wait are served in rounds,
// with one of each instance, in the order of coming: so an instance does not keep others
// out, however many connections it has. To let nobody wait for long, each has a turn: once
// it is over, a message that is not complete costs the connection, oldest first, if there
// is one that waits for it. Nobody who waits holds anything that others wait for.
type readers struct {
	mu      sync.Mutex
	free    int
	holders []*turn // in the order in which their turns end
	waiting []*turn // by round, then in the order of coming
	round   int     // of the one that was granted last
	peak    int     // the most holders that there have been
}

// turn is the right of one connection to read a long message.
type turn struct {
	meter    *meter
	instance string
	// length is how long it lasts if somebody waits; it is the same for all.
	length  time.Duration
	granted chan struct{}
	until   time.Time
	round   int
}

// errTurn says that the connection has to end for others.
var errTurn = errors.New("too many long messages at once: try again later")

// enter returns when it is t's turn, which leave ends. The error is errTurn if that takes
// too long, or that of ctx.
func (r *readers) enter(ctx context.Context, t *turn, most time.Duration) error {
	t.granted = make(chan struct{})
	r.mu.Lock()
	r.queueLocked(t)
	r.dealLocked()
	r.mu.Unlock()
	limit := time.NewTimer(most)
	defer limit.Stop()
	var err error
	select {
	case <-t.granted:
		return nil
	case <-limit.C:
		err = errTurn
	case <-ctx.Done():
		err = ctx.Err()
	}
	r.leave(t) // it may have been granted meanwhile
	return err
}

// queueLocked puts t into the first round to come that has none of its instance.
func (r *readers) queueLocked(t *turn) {
	t.round = r.round + 1
	for _, w := range r.waiting {
		if w.instance == t.instance {
			t.round = w.round + 1
		}
	}
	i := len(r.waiting)
	for i > 0 && r.waiting[i-1].round > t.round {
		i--
	}
	r.waiting = slices.Insert(r.waiting, i, t)
}

// leave ends t, or the waiting for it.
func (r *readers) leave(t *turn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.holders, t); i >= 0 {
		r.holders = slices.Delete(r.holders, i, i+1)
		r.free++
		t.meter.hurry(time.Time{})
	} else if i := slices.Index(r.waiting, t); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
	}
	r.dealLocked()
}

// dealLocked grants what is free, and hurries as many as others wait for.
func (r *readers) dealLocked() {
	for r.free > 0 && len(r.waiting) > 0 {
		t := r.waiting[0]
		r.waiting = slices.Delete(r.waiting, 0, 1)
		r.round = t.round
		r.free--
		r.holders = append(r.holders, t)
		r.peak = max(r.peak, len(r.holders))
		t.until = time.Now().Add(t.length)
		close(t.granted)
	}
	for i, h := range r.holders {
		if i < len(r.waiting) {
			h.meter.hurry(h.until)
		} else {
			h.meter.hurry(time.Time{})
		}
	}
}
