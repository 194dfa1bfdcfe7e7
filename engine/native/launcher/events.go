package launcher

import (
	"cmp"
	"encoding/json"
	"sync"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// events are the events that no client has received yet. A newer event of a kind replaces
// the older one, since its count includes it. So a slow or absent client costs at most two
// events per box.
type events struct {
	more chan struct{} // has an element if there may be events

	mu      sync.Mutex
	pending map[eventKey]int64
	ids     map[string]string // of boxes whose cgroups have another name, by that name
}

type eventKey struct {
	box  string
	kind engine.EventKind
}

func newEvents() *events {
	return &events{more: make(chan struct{}, 1), pending: map[eventKey]int64{}, ids: map[string]string{}}
}

// rename notes the ID of a box with cgroups called name, or forgets it if id is empty.
func (e *events) rename(name, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id == "" || id == name {
		delete(e.ids, name)
	} else {
		e.ids[name] = id
	}
}

var eventKinds = map[cgroups.Limit]engine.EventKind{
	cgroups.MemoryLimit: engine.EventOOM,
	cgroups.PIDsLimit:   engine.EventPIDs,
}

// add is called by the Watcher, with the name of a cgroup.
func (e *events) add(cgroup string, limit cgroups.Limit, count int64) {
	e.mu.Lock()
	box := boxOf(cgroup)
	e.pending[eventKey{cmp.Or(e.ids[box], box), eventKinds[limit]}] = count
	e.mu.Unlock()
	e.wake()
}

// putBack takes back events that could not be sent. Newer events replace them.
func (e *events) putBack(unsent map[eventKey]int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, count := range unsent {
		e.pending[key] = max(count, e.pending[key])
	}
}

func (e *events) wake() {
	select {
	case e.more <- struct{}{}:
	default:
	}
}

// take removes the pending events and returns them.
func (e *events) take() map[eventKey]int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	pending := e.pending
	e.pending = map[eventKey]int64{}
	return pending
}

// eventPause is the pause between two rounds of events, so that a box that constantly hits
// its limits does not keep the client busy.
const eventPause = 50 * time.Millisecond

// sendEvents sends events to the client until ended is closed. Events without a client wait
// for the next one.
func (l *Launcher) sendEvents(ended <-chan struct{}) {
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
			continue // the next client wakes it again
		}
		s.events.putBack(sendTo(c, s.events.take()))
		select {
		case <-time.After(eventPause):
		case <-ended:
			return
		}
	}
}

// sendTo sends events and returns those that could not be sent because the client is gone.
func sendTo(c *client, pending map[eventKey]int64) map[eventKey]int64 {
	for key, count := range pending {
		body, err := json.Marshal(rpc.Event{Box: key.box, Kind: key.kind, Count: count})
		if err != nil || c.conn.Send(rpc.TypeEvent, 0, body) != nil {
			break
		}
		delete(pending, key)
	}
	return pending
}
