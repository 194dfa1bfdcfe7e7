package door

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// meter is a connection whose reads are bounded: in time, so that a peer that is gone is
// noticed, and by the rules that frames checks. Only one goroutine reads.
type meter struct {
	net.Conn
	times  *times
	frames frames
	// broken is the rule that the peer has broken. All reads fail with it.
	broken error
	// messageDeadline is when the current message must be complete; zero between messages.
	messageDeadline time.Time

	// moved is when the peer last accepted bytes, as a time of now.
	moved atomic.Int64

	mu sync.Mutex
	// finalDeadline ends all reading, because the connection is being closed; zero otherwise.
	finalDeadline time.Time
	// turnDeadline is when the current message must be complete because other connections
	// wait for their turn; zero while none does.
	turnDeadline time.Time
	// readDeadline is the deadline of the current read, apart from turnDeadline.
	readDeadline time.Time
}

// Write writes in small pieces, and records when the peer accepts one.
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

// Read returns the bytes up to the first violation, and fails from then on.
func (m *meter) Read(p []byte) (int, error) {
	if m.broken != nil {
		return 0, m.broken
	}
	if err := m.extend(); err != nil {
		return 0, err
	}
	n, err := m.Conn.Read(p)
	for n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
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
	m.readDeadline = time.Now().Add(m.times.silence)
	for _, t := range [...]time.Time{m.messageDeadline, m.finalDeadline} {
		if !t.IsZero() && t.Before(m.readDeadline) {
			m.readDeadline = t
		}
	}
	return m.Conn.SetReadDeadline(m.deadlineLocked())
}

func (m *meter) deadlineLocked() time.Time {
	if !m.turnDeadline.IsZero() && m.turnDeadline.Before(m.readDeadline) {
		return m.turnDeadline
	}
	return m.readDeadline
}

// expired returns the error of a read that has timed out: errTurn if the turn has ended,
// otherwise err. It returns nil if there is time left, because a deadline was lifted.
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

// setTurnDeadline makes the current read fail at t, unless the message is complete by then;
// zero lifts the deadline.
func (m *meter) setTurnDeadline(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.turnDeadline.Equal(t) {
		return
	}
	m.turnDeadline = t
	m.Conn.SetReadDeadline(m.deadlineLocked())
}

// finish ends all reading after the time d.
func (m *meter) finish(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := time.Now().Add(d); m.finalDeadline.IsZero() || t.Before(m.finalDeadline) {
		m.finalDeadline, m.readDeadline = t, t
		m.Conn.SetReadDeadline(t)
	}
}

// drain reads, after our close frame was sent, until the peer's: closing a connection with
// unread data would destroy our close frame before the peer has read it (RFC 1122,
// 4.2.2.13). It must not be called while another goroutine reads.
func (m *meter) drain() {
	m.finish(m.times.linger)
	m.broken, m.frames.lenient = nil, true // whatever the violation was
	buf := make([]byte, 32<<10)
	for !m.frames.closed {
		if _, err := m.Read(buf); err != nil {
			return
		}
	}
}
