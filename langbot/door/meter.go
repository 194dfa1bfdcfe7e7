package door

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// hijacker gives a meter to whoever hijacks the connection.
type hijacker struct {
	http.ResponseWriter
	times *times
	meter *meter
}

func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.meter = &meter{Conn: c, times: h.times}
	return h.meter, rw, nil
}

// meter is a connection whose reads are bounded: in time, so that a peer that is gone is
// noticed, and by the rules that frames checks. One goroutine reads.
type meter struct {
	net.Conn
	times  *times
	frames frames
	// broken is the rule that the peer has broken; all reads fail with it.
	broken error
	// messageDeadline: the message that is being read is complete by then; zero between
	// messages.
	messageDeadline time.Time

	// moved is when the peer has last taken something, by now.
	moved atomic.Int64

	mu sync.Mutex
	// finalDeadline: the peer sends nothing after it, because we close; zero while we do not.
	finalDeadline time.Time
	// turnDeadline: the message is complete by then, because other connections wait for
	// their turn; zero while none does.
	turnDeadline time.Time
	// readDeadline is the deadline of the read under way, without turnDeadline.
	readDeadline time.Time
}

// Write notes how the peer takes what is written, piece by piece.
func (m *meter) Write(p []byte) (n int, err error) {
	const piece = 64 << 10
	for {
		k, err := m.Conn.Write(p[n:min(len(p), n+piece)])
		n += k
		if err != nil || n == len(p) {
			return n, err
		}
		m.moved.Store(int64(now()))
	}
}

// Read returns no byte beyond a violation.
func (m *meter) Read(p []byte) (int, error) {
	if m.broken != nil {
		return 0, m.broken
	}
	if err := m.extend(); err != nil {
		return 0, err
	}
	n, err := m.Conn.Read(p)
	for n == 0 && isTimeout(err) {
		if err = m.expired(err); err != nil {
			break
		}
		n, err = m.Conn.Read(p)
	}
	good, broken := m.frames.feed(p[:n])
	if broken == nil {
		return n, err
	}
	m.broken, m.frames.lenient = broken, true
	m.frames.feed(p[good:n])
	return good, nil
}

// extend sets the deadline of the next read.
func (m *meter) extend() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	until := time.Now().Add(m.times.silence)
	for _, t := range [...]time.Time{m.messageDeadline, m.finalDeadline} {
		if !t.IsZero() && t.Before(until) {
			until = t
		}
	}
	m.readDeadline = until
	return m.Conn.SetReadDeadline(m.deadlineLocked())
}

func (m *meter) deadlineLocked() time.Time {
	if !m.turnDeadline.IsZero() && m.turnDeadline.Before(m.readDeadline) {
		return m.turnDeadline
	}
	return m.readDeadline
}

// expired is what a read returns whose deadline is over: errTurn if it was that of the
// turn, whatever becomes of that later, or err. It is nil if there is time left, because
// a deadline was taken back.
func (m *meter) expired(err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch deadline := m.deadlineLocked(); {
	case time.Now().Before(deadline):
		return nil
	case deadline.Equal(m.turnDeadline):
		return errTurn
	}
	return err
}

// hurry has the message that is being read end by then; zero takes that back.
func (m *meter) hurry(until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.turnDeadline.Equal(until) {
		return
	}
	m.turnDeadline = until
	m.Conn.SetReadDeadline(m.deadlineLocked())
}

// finish lets the peer send for this much longer.
func (m *meter) finish(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if until := time.Now().Add(d); m.finalDeadline.IsZero() || until.Before(m.finalDeadline) {
		m.finalDeadline, m.readDeadline = until, until
		m.Conn.SetReadDeadline(until)
	}
}

// drain reads, after our close frame, until that of the peer: a connection that is
// closed with data unread takes our close frame away from the peer (RFC 1122, 4.2.2.13).
// It may be called when nobody reads any more.
func (m *meter) drain() {
	m.finish(m.times.linger)
	m.broken, m.frames.lenient = nil, true // of the library's kind, too
	buf := make([]byte, 32<<10)
	for !m.frames.closed {
		if _, err := m.Read(buf); err != nil {
			return
		}
	}
}
