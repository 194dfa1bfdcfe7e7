package door

import (
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// Bounds of what a peer that does not read makes us keep.
const (
	// Above these, no more requests are taken from it.
	fullReplies = 512
	fullBytes   = 32 << 20
	// Above this, which actions that had begun before can reach, it is cut.
	mostBytes = 256 << 20
)

// sender writes replies in the order in which they were added. It has no goroutine of its
// own: who adds to an idle sender has to flush.
type sender struct {
	ws    *websocket.Conn
	write time.Duration

	mu      sync.Mutex
	queue   [][]byte
	bytes   int // of queue, and of what is being written
	waiting int // replies in queue, and those being written
	writing bool
	stopped bool
	cut     bool      // stopped because the peer does not take what it asks for
	room    sync.Cond // bytes and waiting have become less, or stopped
}

func (s *sender) init(ws *websocket.Conn, write time.Duration) {
	s.ws, s.write, s.room.L = ws, write, &s.mu
}

// add puts a reply into the queue. flush says that the caller has to call flush.
func (s *sender) add(b []byte) (flush bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	if s.bytes+len(b) > mostBytes {
		s.cutLocked()
		return false
	}
	s.queue = append(s.queue, b)
	s.bytes += len(b)
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
		b := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		s.mu.Unlock()
		err := s.one(b)
		s.mu.Lock()
		s.bytes -= len(b)
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
	s.ws.SetWriteDeadline(time.Now().Add(s.write + time.Duration(len(b)>>20)*time.Second))
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
	s.queue = nil
	s.room.Broadcast()
}

// cutLocked is stopLocked, and ends the reading: the peer does not take what it asks for.
func (s *sender) cutLocked() {
	s.stopLocked()
	s.cut = true
	s.ws.UnderlyingConn().(*meter).finish(0)
}
