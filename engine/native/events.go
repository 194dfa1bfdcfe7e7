package native

import (
	"sync"

	"github.com/boxd/boxd/engine"
)

// events is the channel of a box's events. It has room for one event of each kind. A newer
// event replaces one that was not received, and includes its count.
type events struct {
	ch chan engine.Event

	mu     sync.Mutex // held while sending
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
		e.ch <- p // does not block: mu makes this the only sender
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
