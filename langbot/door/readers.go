package door

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// readers bounds how many long messages are read at once. Further connections wait; their
// peers keep the bytes meanwhile. Waiting connections are served in rounds, in the order of
// arrival, with one connection of each instance in a round: so an instance cannot keep
// others out, however many connections it has. To bound the wait, each reader has a turn.
// When its turn is over and others wait, a connection whose message is not complete is
// closed: as many connections as others wait for, beginning with the oldest turn. A
// connection that waits holds nothing that others wait for.
type readers struct {
	mu      sync.Mutex
	free    int
	holders []*turn // in the order in which their turns end
	waiting []*turn // by round, then in the order of arrival
	round   int     // of the turn that was granted last
	peak    int     // the highest number of holders so far
}

// turn is the right of one connection to read a long message.
type turn struct {
	meter    *meter
	instance string
	// length is how long the turn lasts while others wait. It is the same for all turns.
	length   time.Duration
	granted  chan struct{}
	deadline time.Time
	round    int
}

// errTurn says that the connection has to end in favour of others.
var errTurn = errors.New("too many long messages at once: try again later")

// enter returns when t is granted; leave ends the turn. The error is errTurn if the wait is
// longer than most, or that of ctx.
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

// queueLocked puts t into the first future round without a turn of its instance.
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

// leave ends t, or the wait for it.
func (r *readers) leave(t *turn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.holders, t); i >= 0 {
		r.holders = slices.Delete(r.holders, i, i+1)
		r.free++
		t.meter.setTurnDeadline(time.Time{})
	} else if i := slices.Index(r.waiting, t); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
	}
	r.dealLocked()
}

// dealLocked grants the turns that are free, and sets the deadlines of as many holders as
// there are connections that wait.
func (r *readers) dealLocked() {
	for r.free > 0 && len(r.waiting) > 0 {
		t := r.waiting[0]
		r.waiting = slices.Delete(r.waiting, 0, 1)
		r.round = t.round
		r.free--
		r.holders = append(r.holders, t)
		r.peak = max(r.peak, len(r.holders))
		t.deadline = time.Now().Add(t.length)
		close(t.granted)
	}
	for i, h := range r.holders {
		if i < len(r.waiting) {
			h.meter.setTurnDeadline(h.deadline)
		} else {
			h.meter.setTurnDeadline(time.Time{})
		}
	}
}
