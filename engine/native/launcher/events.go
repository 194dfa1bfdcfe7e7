package launcher

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// events are what the client has not been told yet. A newer one of a kind takes the
// place of an older: its count is in it. So a client that is slow, or not there, costs
// two events for each box.
type events struct {
	more chan struct{} // there may be some

	mu      sync.Mutex
	pending map[eventKey]int64
}

type eventKey struct {
	box  string
	kind engine.EventKind
}

func newEvents() *events {
	return &events{more: make(chan struct{}, 1), pending: map[eventKey]int64{}}
}

var eventKinds = map[cgroups.Limit]engine.EventKind{
	cgroups.MemoryLimit: engine.EventOOM,
	cgroups.PIDsLimit:   engine.EventPIDs,
}

// add is called by the Watcher, with the name of a cgroup.
func (e *events) add(cgroup string, limit cgroups.Limit, count int64) {
	e.mu.Lock()
	e.pending[eventKey{boxOf(cgroup), eventKinds[limit]}] = count
	e.mu.Unlock()
	e.wake()
}

// putBack takes back what could not be told. What came since is newer.
func (e *events) putBack(untold map[eventKey]int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, count := range untold {
		e.pending[key] = max(count, e.pending[key])
	}
}

func (e *events) wake() {
	select {
	case e.more <- struct{}{}:
	default:
	}
}

// take returns what is pending, and forgets it.
func (e *events) take() map[eventKey]int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	pending := e.pending
	e.pending = map[eventKey]int64{}
	return pending
}

// eventPause in between keeps a box that runs into its limits all the time from keeping
// the client busy.
const eventPause = 50 * time.Millisecond

// tellEvents tells the client, if there is one, until ended. What happened without a
// client is told to the next.
func (l *Launcher) tellEvents(ended <-chan struct{}) {
	s := l.service
	for {
		select {
		case <-s.events.more:
		case <-ended:
			return
		}
		s.mu.Lock()
		c := s.current
		s.mu.Unlock()
		if c == nil || !c.greeted.Load() {
			continue // woken again by whoever connects
		}
		s.events.putBack(tell(c, s.events.take()))
		select {
		case <-time.After(eventPause):
		case <-ended:
			return
		}
	}
}

// tell sends events and returns those that could not be sent: then the client is gone.
func tell(c *client, pending map[eventKey]int64) map[eventKey]int64 {
	for key, count := range pending {
		body, err := json.Marshal(rpc.Event{Box: key.box, Kind: key.kind, Count: count})
		if err != nil || c.conn.Send(rpc.TypeEvent, 0, body) != nil {
			break
		}
		delete(pending, key)
	}
	return pending
}
