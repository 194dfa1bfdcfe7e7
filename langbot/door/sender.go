package door

import (
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/langbot/protocol"
)

// Above these limits, no further requests are read from a peer that does not read replies.
// Memory decides about the replies to requests that are already under way.
const (
	fullReplies = 512
	fullBytes   = 32 << 20
)

// sender writes replies in the order in which they were added. It has no goroutine of its
// own: a caller that adds to an idle sender must call flush.
type sender struct {
	ws     *websocket.Conn
	meter  *meter
	pool   *pool
	share  share
	times  times
	cancel func() // cancels the connection's actions

	mu      sync.Mutex
	queue   []reply
	bytes   int // in queue, and being written
	waiting int // replies in queue, and being written
	writing bool
	stopped bool
	cut     bool      // stopped because the peer does not accept its replies
	room    sync.Cond // bytes and waiting have decreased, or stopped is set
}

// reply is an admitted reply. The zero value means that there is none.
type reply struct {
	bytes []byte
	taken int // bytes taken from the pool
}

func (s *sender) init(ws *websocket.Conn, m *meter, p *pool, t times, cancel func()) {
	s.ws, s.meter, s.pool, s.times, s.cancel, s.room.L = ws, m, p, t, cancel, &s.mu
	s.share.cut, s.share.moved = s.cutNow, &m.moved
}

// admit takes room for b, a reply to seq or nil; the result must be passed to add. If there
// is no room, the reply is replaced by a refusal, unless it is shorter than that. These
// replies are not counted: there are at most fullReplies + maxInFlight of some 200 bytes.
func (s *sender) admit(seq json.RawMessage, b []byte) reply {
	if b == nil {
		return reply{}
	}
	if s.pool.takeOrCut(&s.share, len(b), s.times.stall) {
		return reply{b, len(b)}
	}
	if refusal := protocol.Failure(seq, errReplies); len(refusal) < len(b) {
		b = refusal
	}
	return reply{bytes: b}
}

// add queues a reply. If it returns true, the caller must call flush.
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

// flush writes until the queue is empty.
func (s *sender) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 && !s.stopped {
		r := s.queue[0]
		s.queue[0] = reply{}
		s.queue = s.queue[1:]
		s.mu.Unlock()
		s.meter.moved.Store(int64(now()))
		s.ws.SetWriteDeadline(time.Now().Add(s.times.write + time.Duration(len(r.bytes)>>20)*time.Second))
		err := s.ws.WriteMessage(websocket.TextMessage, r.bytes) // as one frame
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

// wait waits until there is room for more replies, or the sender has stopped. It returns
// false if the peer was cut, so that nothing more is read from it.
func (s *sender) wait() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.stopped && (s.waiting > fullReplies || s.bytes > fullBytes) {
		s.room.Wait()
	}
	return !s.cut
}

// stop drops the replies that were not written, and all later ones.
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

// cutLocked stops the sender and ends all reading, because the peer does not accept its
// replies.
func (s *sender) cutLocked() {
	s.stopLocked()
	s.cut = true
	s.cancel()
	s.meter.finish(0)
}

// cutNow stops the sender as cutLocked does, and also ends the write under way. A close
// frame could not reach the peer, because it would have to follow a reply that the peer does
// not accept.
func (s *sender) cutNow() {
	s.mu.Lock()
	s.cutLocked()
	s.mu.Unlock()
	s.meter.Conn.Close()
}

// errCut is the reason, for the log, why a connection that was cut has ended.
var errCut = errors.New("the peer does not take its replies")

func (s *sender) isCut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut
}
