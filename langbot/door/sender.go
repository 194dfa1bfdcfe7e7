package door

import (
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/langbot/protocol"
)

// Above these, no more requests are taken from a peer that does not read. Replies of
// those that had begun before find room in Memory, or do not.
const (
	fullReplies = 512
	fullBytes   = 32 << 20
)

// sender writes replies in the order in which they were added. It has no goroutine of its
// own: who adds to an idle sender has to flush.
type sender struct {
	ws     *websocket.Conn
	meter  *meter
	pool   *pool
	share  share
	times  times
	cancel func() // ends what waits on behalf of the connection

	mu      sync.Mutex
	queue   []reply
	bytes   int // of queue, and of what is being written
	waiting int // replies in queue, and those being written
	writing bool
	stopped bool
	cut     bool      // stopped because the peer does not take what it asks for
	room    sync.Cond // bytes and waiting have become less, or stopped
}

// reply is one that has been admitted. The zero reply is none.
type reply struct {
	bytes []byte
	taken int // of the pool
}

func (s *sender) init(ws *websocket.Conn, m *meter, p *pool, t times, cancel func()) {
	s.ws, s.meter, s.pool, s.times, s.cancel, s.room.L = ws, m, p, t, cancel, &s.mu
	s.share.cut, s.share.moved = s.cutNow, &m.moved
}

// admit finds room for b, a reply to seq or nil; add takes it over. Where there is none
// the reply becomes a refusal, if it is longer than one. Those are let through without
// being counted: there are at most fullReplies + maxInFlight, of some 200 bytes.
func (s *sender) admit(seq json.RawMessage, b []byte) reply {
	if b == nil {
		return reply{}
	}
	if s.pool.press(&s.share, len(b), s.times.stall) {
		return reply{b, len(b)}
	}
	if refusal := protocol.Failure(seq, errReplies); len(refusal) < len(b) {
		b = refusal
	}
	return reply{bytes: b}
}

// add puts a reply into the queue. flush says that the caller has to call flush.
func (s *sender) add(r reply) (flush bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || r.bytes == nil {
		s.pool.give(&s.share, r.taken)
		return false
	}
	s.queue = append(s.queue, r)
	s.bytes += len(r.bytes)
	s.waiting++
	flush = !s.writing
	s.writing = true
	return flush
}

// flush writes until there is nothing more to write.
func (s *sender) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 && !s.stopped {
		r := s.queue[0]
		s.queue[0] = reply{}
		s.queue = s.queue[1:]
		s.mu.Unlock()
		err := s.one(r.bytes)
		s.mu.Lock()
		s.pool.give(&s.share, r.taken)
		s.bytes -= len(r.bytes)
		s.waiting--
		s.room.Signal()
		if err != nil && !s.stopped {
			s.cutLocked()
		}
	}
	s.queue = nil
	s.writing = false
}

// one writes one reply, as one frame.
func (s *sender) one(b []byte) error {
	s.meter.moved.Store(int64(now()))
	s.ws.SetWriteDeadline(time.Now().Add(s.times.write + time.Duration(len(b)>>20)*time.Second))
	return s.ws.WriteMessage(websocket.TextMessage, b)
}

// wait returns when there is room for more replies, or there will be none. It is false
// if the peer has been cut: what it has sent already is not to be read either.
func (s *sender) wait() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.stopped && (s.waiting > fullReplies || s.bytes > fullBytes) {
		s.room.Wait()
	}
	return !s.cut
}

// stop forgets what was not written.
func (s *sender) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopLocked()
}

func (s *sender) stopLocked() {
	s.stopped = true
	for _, r := range s.queue {
		s.pool.give(&s.share, r.taken)
	}
	s.queue = nil
	s.room.Broadcast()
}

// cutLocked is stopLocked, and ends the reading: the peer does not take what it asks for.
func (s *sender) cutLocked() {
	s.stopLocked()
	s.cut = true
	s.cancel()
	s.meter.finish(0)
}

// cutNow is cutLocked, and ends the writing as well. No close frame would get through:
// a reply that the peer does not take is in its way.
func (s *sender) cutNow() {
	s.mu.Lock()
	s.cutLocked()
	s.mu.Unlock()
	s.meter.Conn.Close()
}

// errCut is why a connection ends that was cut.
var errCut = errors.New("the peer does not take its replies")

func (s *sender) isCut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut
}
