package launcher

import (
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
)

// trials are the requests under way that try whether a directory can be mounted into boxes.
// Whoever watches the health asks for that again and again. While a file system hangs, the
// first request stays; if the others stayed as well, they would use up the budget of all
// requests. So there is one for each directory, and the others are told what it is at.
type trials struct {
	mu  sync.Mutex
	all map[engine.Directory]*trial
}

type trial struct {
	work  *work
	began time.Time
	over  chan struct{} // closed when it has ended
}

// enter waits until w is alone with d. It refuses w once another one has taken stallTime. The
// caller calls leave when w has ended.
func (t *trials) enter(d engine.Directory, w *work) (leave func(), err error) {
	for {
		t.mu.Lock()
		other := t.all[d]
		if other == nil {
			own := &trial{work: w, began: time.Now(), over: make(chan struct{})}
			if t.all == nil {
				t.all = map[engine.Directory]*trial{}
			}
			t.all[d] = own
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				delete(t.all, d)
				t.mu.Unlock()
				close(own.over)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-other.over:
		case <-time.After(time.Until(other.began.Add(stallTime))):
			return nil, unavailable("the same request hangs already: " + w.all.textOf(other.work))
		}
	}
}
