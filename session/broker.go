package session

import (
	"maps"
	"sync"
	"time"
)

const (
	// keepEvents is how many events are kept for subscribers that return.
	keepEvents = 1024
	// eventQueue is how many events a subscriber may lag behind.
	eventQueue = 256
	// epochShift leaves 2^32 events to one opening of the database, and 2^21 openings
	// below 2^53, the limit up to which every JSON reader keeps a number exact.
	epochShift = 32
)

// broker hands events to subscribers without ever waiting for one.
type broker struct {
	mu     sync.Mutex
	last   uint64  // sequence number
	first  uint64  // all sequence numbers of this broker are above it
	kept   []Event // a ring once it is full; next is the oldest element then
	next   int
	subs   map[*Subscription]struct{}
	missed uint64
	closed bool
}

// newBroker numbers its events above those of all earlier epochs.
func newBroker(epoch uint64) *broker {
	return &broker{last: epoch << epochShift, first: epoch << epochShift, subs: map[*Subscription]struct{}{}}
}

// publish sends e to the subscribers, after setting its Seq and Time.
func (b *broker) publish(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.last++
	e.Seq, e.Time = b.last, time.Now().Round(0)
	if len(b.kept) < keepEvents {
		b.kept = append(b.kept, e)
	} else {
		b.kept[b.next] = e
		b.next = (b.next + 1) % keepEvents
	}
	for s := range b.subs {
		if wants(s.tenant, e) {
			b.sendLocked(s, e)
		}
	}
}

// wants reports whether a subscription to tenant gets e.
func wants(tenant string, e Event) bool { return tenant == "" || tenant == e.Tenant }

// sendLocked sends e to s, preceded by a report of the events that s has missed. It sends
// both or neither: the broker is the only sender, so room that it has seen in the channel
// stays.
func (b *broker) sendLocked(s *Subscription, e Event) {
	need := 1
	if s.missed > 0 {
		need = 2
	}
	if cap(s.ch)-len(s.ch) < need {
		s.missed++
		b.missed++
		return
	}
	if s.missed > 0 {
		s.ch <- missedEvent(e.Seq-1, s.missed)
		s.missed = 0
	}
	s.ch <- e
}

func missedEvent(seq, count uint64) Event {
	return Event{Seq: seq, Time: time.Now().Round(0), Type: EventMissed, Details: map[string]any{"count": count}}
}

func (b *broker) subscribe(tenant string, since uint64) *Subscription {
	b.mu.Lock()
	defer b.mu.Unlock()
	var replay []Event
	if since > 0 {
		replay = b.sinceLocked(tenant, since)
	}
	ch := make(chan Event, eventQueue+len(replay))
	s := &Subscription{C: ch, broker: b, ch: ch, tenant: tenant}
	for _, e := range replay {
		ch <- e
	}
	if b.closed {
		close(ch)
		return s
	}
	b.subs[s] = struct{}{}
	return s
}

// sinceLocked returns the kept events after the event since, preceded by a report of those
// that are no longer kept. Their number is known only within one epoch, and only for all
// tenants together.
func (b *broker) sinceLocked(tenant string, since uint64) []Event {
	all := append(append([]Event{}, b.kept[b.next:]...), b.kept[:b.next]...)
	oldest := b.last + 1
	if len(all) > 0 {
		oldest = all[0].Seq
	}
	var list []Event
	if since < oldest-1 {
		count := uint64(0)
		if since >= b.first && tenant == "" {
			count = oldest - since - 1
		}
		list = append(list, missedEvent(oldest-1, count))
	}
	for _, e := range all {
		if e.Seq > since && wants(tenant, e) {
			list = append(list, e)
		}
	}
	return list
}

func (b *broker) endLocked(s *Subscription) {
	if _, ok := b.subs[s]; ok {
		delete(b.subs, s)
		close(s.ch)
	}
}

func (b *broker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for s := range maps.Clone(b.subs) {
		b.endLocked(s)
	}
}

func (b *broker) stats() (subscribers int, missed uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs), b.missed
}
