package launcher

import (
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
)

// trials are the requests in progress that test whether a directory can be mounted into
// boxes. Health checks send such requests again and again. While a file system hangs, the first
// of them hangs. If the others hung as well, they would use up the budget of all requests. So
// there is at most one per directory, and the others are told at which step it is.
type trials struct {
	mu  sync.Mutex
	all map[engine.Directory]*trial
}

type trial struct {
	work  *work
	began time.Time
	over  chan struct{} // closed when it has ended
}

// enter waits until no other request tests d. It refuses w once the other one has taken
// stallTime. The caller calls leave when w has ended.
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
