package native

import (
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
)

// releaseDelay is how long the agent may not know of a Release. It keeps the offset for the
// next client, and a frame for each line would cost more than the line.
const releaseDelay = 10 * time.Millisecond

// Release implements engine.Output. It tells the agent at once of the first release, and of
// one that frees a large part of the ring. A smaller part never keeps the process from
// writing.
func (o *output) Release(off int64) {
	o.tellRelease(o.release(off))
}

// Released implements engine.Output.
func (o *output) Released() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.released
}

// release returns the message to send for a Release now, or nil.
func (o *output) release(off int64) *wire.ReleaseMsg {
	o.mu.Lock()
	defer o.mu.Unlock()
	if off > o.head {
		o.refreshLocked()
	}
	o.released = max(o.released, min(off, o.head))
	wait := releaseDelay - time.Since(o.told)
	if wait <= 0 || o.released-o.sent >= o.size/8 {
		return o.newsLocked()
	}
	o.tellLaterLocked(wait)
	return nil
}

// newsLocked returns the message about a release that the agent does not know yet, or nil.
func (o *output) newsLocked() *wire.ReleaseMsg {
	if o.released == o.sent {
		return nil
	}
	o.sent, o.told = o.released, time.Now()
	return &wire.ReleaseMsg{Stream: o.stream, Offset: uint64(o.sent)}
}

// tellRelease sends a message of release. Like tell, it is called without o's lock. If two
// messages overtake one another, the higher offset wins.
func (o *output) tellRelease(m *wire.ReleaseMsg) {
	if m != nil {
		o.link.tell(wire.TypeRelease, o.number, m.Marshal())
	}
}

func (o *output) tellLaterLocked(wait time.Duration) {
	if o.pending || o.released == o.sent || o.closed {
		return
	}
	o.pending = true
	o.tellers.Add(1)
	if o.telling == nil {
		o.telling = time.AfterFunc(wait, o.tellNow)
	} else {
		o.telling.Reset(wait)
	}
}

// tellNow tells the agent of the last release after a delay.
func (o *output) tellNow() {
	defer o.tellers.Done()
	o.mu.Lock()
	o.pending = false
	m := o.newsLocked()
	o.mu.Unlock()
	o.tellRelease(m)
}

// stopTelling ends the delays for good, and waits for the message of one that has just ended.
func (o *output) stopTelling() {
	o.mu.Lock()
	o.closed = true
	if o.pending && o.telling.Stop() {
		o.pending = false
		o.tellers.Done()
	}
	o.mu.Unlock()
	o.tellers.Wait()
}

// lastWordsTime bounds sending the last messages to an agent, which may not read them.
const lastWordsTime = time.Second

// tellReleases tells the agents of boxes that this process leaves about the last releases,
// which they keep for the next client.
func tellReleases(boxes []*box) {
	var wg sync.WaitGroup
	for _, b := range boxes {
		b.mu.Lock()
		link := b.managed
		b.mu.Unlock()
		if link != nil {
			wg.Go(link.tellReleases)
		}
	}
	wg.Wait()
}

func (l *managedLink) tellReleases() {
	t := time.AfterFunc(lastWordsTime, func() { l.conn.Close() })
	defer t.Stop()
	for _, p := range l.all() {
		for _, o := range p.outputs {
			o.stopTelling() // a message that is being sent counts as sent, and would be lost with the connection
			o.mu.Lock()
			m := o.newsLocked()
			o.mu.Unlock()
			o.tellRelease(m)
		}
	}
}
