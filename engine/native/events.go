package native

import (
	"sync"

	"github.com/boxd/boxd/engine"
)

// events is the channel of a box's events. There is room for one of each kind: a
// newer one takes the place of one that nobody has taken, whose count is in its own.
type events struct {
	ch chan engine.Event

	mu     sync.Mutex // held by whoever sends
	closed bool
}

// eventKinds is how many kinds of events there are.
const eventKinds = 2

func newEvents() *events { return &events{ch: make(chan engine.Event, eventKinds)} }

func (e *events) send(fresh engine.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	pending := []engine.Event{fresh}
	for {
		select {
		case old := <-e.ch:
			if old.Kind != fresh.Kind && len(pending) < eventKinds {
				pending = append(pending, old)
			}
			continue
		default:
		}
		break
	}
	for _, p := range pending {
		e.ch <- p // fits: nobody else sends
	}
}

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.closed = true
		close(e.ch)
	}
}

// Events implements engine.LiveBox.
func (b *box) Events() <-chan engine.Event { return b.events.ch }
