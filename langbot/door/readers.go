package door

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// readers bounds how many long messages are read at once. Who comes when there are
// enough waits, and is served in the order of coming: what it sends stays with its
// peer. To let nobody wait for long, each has a turn: once it is over, a message that is
// not complete costs the connection if anybody waits. Nobody who waits holds anything
// that others wait for.
type readers struct {
	mu      sync.Mutex
	free    int
	holders map[*turn]struct{}
	waiting list.List // of *turn
	peak    int       // the most holders that there have been
}

// turn is the right of one connection to read a long message.
type turn struct {
	meter *meter
	// length is how long it lasts if somebody waits.
	length  time.Duration
	granted chan struct{}
	until   time.Time
}

// errTurn says that the connection has to end for others.
var errTurn = errors.New("too many long messages at once: try again later")

// enter returns when it is t's turn. The error is errTurn if that takes too long, or
// that of ctx.
func (r *readers) enter(ctx context.Context, t *turn, most time.Duration) error {
	t.granted = make(chan struct{})
	place := r.queue(t)
	if place == nil {
		return nil
	}
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
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-t.granted: // meanwhile
		r.leaveLocked(t)
	default:
		r.nextLocked(place)
	}
	return err
}

// queue begins t, or puts it behind those that wait and returns its place there.
func (r *readers) queue(t *turn) *list.Element {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free > 0 {
		r.free--
		r.grantLocked(t)
		return nil
	}
	if r.waiting.Len() == 0 {
		for h := range r.holders {
			h.meter.hurry(h.until)
		}
	}
	return r.waiting.PushBack(t)
}

func (r *readers) grantLocked(t *turn) {
	if r.holders == nil {
		r.holders = map[*turn]struct{}{}
	}
	r.holders[t] = struct{}{}
	r.peak = max(r.peak, len(r.holders))
	t.until = time.Now().Add(t.length)
	if r.waiting.Len() > 0 {
		t.meter.hurry(t.until)
	}
	close(t.granted)
}

// leave ends a turn that was granted.
func (r *readers) leave(t *turn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveLocked(t)
}

func (r *readers) leaveLocked(t *turn) {
	delete(r.holders, t)
	t.meter.hurry(time.Time{})
	if r.waiting.Len() == 0 {
		r.free++
		return
	}
	r.grantLocked(r.nextLocked(r.waiting.Front()))
}

// nextLocked takes one out of those that wait. If it was the last, there is no hurry.
func (r *readers) nextLocked(e *list.Element) *turn {
	t := r.waiting.Remove(e).(*turn)
	if r.waiting.Len() == 0 {
		for h := range r.holders {
			h.meter.hurry(time.Time{})
		}
	}
	return t
}
