package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/tcprelay"
	"github.com/boxd/boxd/policy"
)

// A published port is a listener of this process on a port of the host, from the pool of the
// configuration. It belongs to the session and not to a box: it is opened before the first box is
// built, its number is in the session's record, and a box that is lost changes nothing but that
// connections are reset until there is another. It is closed when the session ends, and for good when
// the session becomes sensitive.
//
// The kernel answers a client before the box is asked, so a client of a port on which nothing listens
// in the box connects, and is reset.

const (
	// maxCallers bounds the connections through the published ports of a session, and MaxCallers
	// those of all sessions. Each has two descriptors and, with callerBuffer, at most 1 MiB of socket
	// buffers. Further ones are reset.
	maxCallers   = 256
	MaxCallers   = 1024
	callerBuffer = 128 << 10 // bytes of each of the four socket buffers, which the kernel doubles
	callerIdle   = 15 * time.Minute
	callerDial   = 10 * time.Second // for connecting in the box, which a takeover may delay
)

// publishing is what the sessions have published together.
type publishing struct {
	callers atomic.Int64 // connections

	mu    sync.Mutex
	taken map[int]*session // by port of the host; also of those that wait for their port
}

// publishedRecord is a published port as stored in the record of its session.
type publishedRecord struct {
	Port int `json:"port"` // of the box
	Host int `json:"host"` // of the host
}

func (r publishedRecord) details() map[string]any {
	return map[string]any{"port": r.Port, "host": r.Host}
}

// publishedPort is a port that its session publishes, or tries to. session.mu guards it.
type publishedPort struct {
	publishedRecord
	listener *net.TCPListener // nil: it is not open, see reason
	reason   string
}

// caller is a connection through a published port.
type caller struct {
	port        *publishedPort
	client, box *net.TCPConn // box is nil until it is dialled; session.mu guards it
}

// PublishedPort is a port of the host that leads to a port of a box.
type PublishedPort struct {
	Port        int    // of the box
	Host        int    // of the host
	Address     string // of the host; empty if the configuration has no pool of ports any more
	Connections int    // open now
	Reason      string // why it is not open; empty: it is
}

// publishPorts opens the ports that the session is to publish. After an error none is open. The caller
// holds the op.
func (s *session) publishPorts(c Caller) error {
	s.mu.Lock()
	wishes := s.resolvedLocked().Publish
	s.mu.Unlock()
	if len(wishes) == 0 {
		return nil
	}
	if err := s.m.audit(c, s.key, audit.Entry{Action: "publish", Decision: audit.Allow, Details: map[string]any{"publish": fmt.Sprint(wishes)}}); err != nil {
		return err
	}
	ports := make([]*publishedPort, len(wishes))
	for _, auto := range []bool{false, true} { // so that no free one is taken that was asked for
		for i, w := range wishes {
			if auto != (w.Host == 0) {
				continue
			}
			var err error
			if ports[i], err = s.m.openAnyPort(s, w); err != nil {
				s.m.releasePorts(ports)
				return fmt.Errorf("publish[%d]: %w", i, err)
			}
		}
	}
	s.mu.Lock()
	if s.record.Sensitive != nil || s.removing || s.gone { // the end of the session, or the ratchet, found no ports to close
		s.mu.Unlock()
		s.m.releasePorts(ports)
		return nil
	}
	s.published, s.record.Published = ports, nil
	for _, p := range ports {
		s.record.Published = append(s.record.Published, p.publishedRecord)
	}
	s.mu.Unlock()
	for _, p := range ports {
		s.servePort(c, p, p.listener)
	}
	return nil
}

// republishPorts opens the ports that the record says, as after a restart of the daemon. It retries in
// the background what it cannot open, and the session goes on without.
func (s *session) republishPorts() {
	s.mu.Lock()
	r := s.resolvedLocked()
	if s.record.Sensitive != nil || s.record.Retained != nil || s.removing || s.gone || len(s.record.Published) == 0 || len(s.published) > 0 {
		s.mu.Unlock()
		return
	}
	for _, record := range s.record.Published {
		s.published = append(s.published, &publishedPort{publishedRecord: record, reason: "is being opened"})
	}
	ports := s.published
	s.mu.Unlock()
	denied := s.m.policy.CheckPublish(r)
	for _, p := range ports {
		err := denied
		if pool := s.m.policy.PublishPool(); err == nil && !pool.Contains(p.Host) {
			err = &policy.DeniedError{Field: "publish", Value: strconv.Itoa(p.Host), Rule: fmt.Sprintf("is not in the pool any more, which is %s", pool)}
		}
		if err == nil && !s.m.takePort(s, p.Host) {
			err = errPortTaken
		}
		if err == nil {
			err = s.reopenPort(p)
		}
		if err == nil {
			continue
		}
		again := " (it will be retried)"
		if denied != nil || errors.Is(err, policy.ErrDenied) {
			again = ""
		}
		s.mu.Lock()
		p.reason = err.Error()
		s.mu.Unlock()
		s.m.report(s.key, "", fmt.Sprintf("its published port %d stays closed%s: %v", p.Host, again, err))
		details := p.details()
		details["reason"] = err.Error()
		s.publish(EventPortUnpublished, system, "", details)
		if again == "" {
			continue
		}
		s.m.spawn(func() {
			s.m.retry(func(context.Context) error {
				s.mu.Lock()
				wanted := slices.Contains(s.published, p)
				s.mu.Unlock()
				if !wanted {
					s.leavePort(p)
					return nil
				}
				if !s.m.takePort(s, p.Host) {
					return errPortTaken
				}
				return s.reopenPort(p)
			})
		})
	}
}

// reopenPort opens a port that was reserved for s.
func (s *session) reopenPort(p *publishedPort) error {
	l, err := s.m.listenPort(p.Host)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if !slices.Contains(s.published, p) { // closed meanwhile, which has returned the port to the pool
		s.mu.Unlock()
		l.Close()
		s.leavePort(p)
		return nil
	}
	p.listener, p.reason = l, ""
	s.mu.Unlock()
	s.servePort(system, p, l)
	return nil
}

// leavePort returns the port of p, which s does not publish any more, to the pool, unless s publishes
// the same port anew.
func (s *session) leavePort(p *publishedPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.published, func(other *publishedPort) bool { return other.Host == p.Host }) {
		s.m.releasePort(s, p.Host)
	}
}

// errPortTaken: another program, or another session, has the port of the host. It is an ErrState.
var errPortTaken portTakenError

type portTakenError struct{}

func (portTakenError) Error() string        { return "is in use" }
func (portTakenError) Is(target error) bool { return target == ErrState }

// takePort reserves a port of the pool for s, unless another session has it.
func (m *Manager) takePort(s *session, port int) bool {
	m.publishing.mu.Lock()
	defer m.publishing.mu.Unlock()
	if owner := m.publishing.taken[port]; owner != nil && owner != s {
		return false
	}
	m.publishing.taken[port] = s
	return true
}

// releasePort returns a port to the pool, if s has it.
func (m *Manager) releasePort(s *session, port int) {
	m.publishing.mu.Lock()
	defer m.publishing.mu.Unlock()
	if m.publishing.taken[port] == s {
		delete(m.publishing.taken, port)
	}
}

// releasePorts closes ports that no client knows of.
func (m *Manager) releasePorts(ports []*publishedPort) {
	for _, p := range ports {
		if p == nil {
			continue
		}
		p.listener.Close()
		m.publishing.mu.Lock()
		delete(m.publishing.taken, p.Host)
		m.publishing.mu.Unlock()
	}
}

// listenPort opens a port of the pool. errPortTaken: another program has it.
func (m *Manager) listenPort(port int) (*net.TCPListener, error) {
	address := m.policy.PublishPool().Address
	network := "tcp" // :: is all addresses of both families
	if address.Is4() {
		network = "tcp4" // "tcp" would take 0.0.0.0 for ::
	}
	l, err := net.ListenTCP(network, net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, uint16(port))))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errPortTaken
	}
	if err != nil { // such as an address that this host does not have
		return nil, fmt.Errorf("opening port %d of publish.address %s: %w: %w", port, address, ErrState, err)
	}
	return l, nil
}

// openAnyPort opens the port that w asks for, or any free one of the pool.
func (m *Manager) openAnyPort(s *session, w spec.PublishWish) (*publishedPort, error) {
	open := func(port int) (*publishedPort, error) {
		m.publishing.mu.Lock()
		_, taken := m.publishing.taken[port]
		if !taken {
			m.publishing.taken[port] = s
		}
		m.publishing.mu.Unlock()
		if taken {
			return nil, errPortTaken
		}
		l, err := m.listenPort(port)
		if err != nil {
			m.releasePort(s, port)
			return nil, err
		}
		return &publishedPort{publishedRecord: publishedRecord{w.Port, port}, listener: l}, nil
	}
	if w.Host != 0 {
		p, err := open(int(w.Host))
		if err != nil {
			return nil, fmt.Errorf("port %d of the host: %w: ask for another one of the pool, or for auto", w.Host, err)
		}
		return p, nil
	}
	pool := m.policy.PublishPool()
	n := pool.Len()
	if n == 0 {
		return nil, &policy.DeniedError{Field: "publish", Value: w.String(), Rule: "this daemon publishes no ports"} // CheckPublish has refused it
	}
	begin := rand.IntN(n)
	for i := range n {
		p, err := open(pool.First + (begin+i)%n)
		if !errors.Is(err, errPortTaken) {
			return p, err
		}
	}
	size := strconv.Itoa(n)
	return nil, &policy.QuotaError{Resource: "ports of the pool " + pool.String(), Limit: size, InUse: size, Asked: "1",
		Advice: "remove a session that publishes ports, or extend publish.ports"}
}

// unpublishPorts closes the published ports of s, and resets all connections through them, before it
// returns. Their numbers stay in the record.
func (s *session) unpublishPorts(reason string) {
	s.mu.Lock()
	closed := s.unpublishLocked()
	s.mu.Unlock()
	s.reportUnpublished(system, closed, reason)
}

// unpublishLocked is unpublishPorts; the caller reports what was open. No connection is accepted
// afterwards: carryCaller finds that its port is not published.
func (s *session) unpublishLocked() (closed []*publishedPort) {
	ports := s.published
	s.published = nil
	for _, p := range ports {
		if p.listener != nil {
			p.listener.Close()
			closed = append(closed, p)
		}
		s.m.releasePort(s, p.Host)
	}
	for c := range s.callers {
		c.abort()
	}
	return closed
}

func (s *session) reportUnpublished(c Caller, closed []*publishedPort, reason string) {
	for _, p := range closed {
		details := p.details()
		s.publish(EventPortUnpublished, c, "", map[string]any{"port": p.Port, "host": p.Host, "reason": reason})
		_ = s.m.audit(c, s.key, audit.Entry{Action: "unpublish", Decision: audit.Done, Reason: reason, Details: details, Ends: true}) // reports its error
	}
}

// abort resets both connections. The caller holds session.mu.
func (c *caller) abort() {
	tcprelay.Abort(c.client)
	if c.box != nil {
		tcprelay.Abort(c.box)
	}
}

// servePort accepts connections of an open port until that is closed, or the manager closes.
func (s *session) servePort(c Caller, p *publishedPort, l *net.TCPListener) {
	details := p.details()
	details["address"] = s.m.policy.PublishPool().Address.String()
	s.publish(EventPortPublished, c, "", details)
	_ = s.m.audit(c, s.key, audit.Entry{Action: "publish", Decision: audit.Done, Details: details}) // reports its error
	ok := s.m.spawn(func() {
		defer context.AfterFunc(s.m.ctx, func() { l.Close() })()
		for {
			client, err := l.AcceptTCP()
			switch {
			case err == nil:
				s.m.wg.Go(func() { s.carryCaller(p, client) }) // Close waits for this goroutine, so it may add to wg
			case errors.Is(err, net.ErrClosed):
				return
			default: // of one connection, or no descriptors are left
				s.m.log.Debug("accepting a connection to a published port", "session", s.key.String(), "port", p.Host, "error", err)
				select {
				case <-time.After(100 * time.Millisecond):
				case <-s.m.ctx.Done():
				}
			}
		}
	})
	if !ok {
		l.Close()
	}
}

// carryCaller connects a client to the box.
func (s *session) carryCaller(p *publishedPort, client *net.TCPConn) {
	defer s.m.publishing.callers.Add(-1)
	all := s.m.publishing.callers.Add(1)
	c := &caller{port: p, client: client}
	s.mu.Lock()
	admitted := slices.Contains(s.published, p) && len(s.callers) < maxCallers && all <= MaxCallers
	if admitted {
		if s.callers == nil {
			s.callers = map[*caller]struct{}{}
		}
		s.callers[c] = struct{}{}
	}
	s.mu.Unlock()
	if !admitted {
		s.m.counters.callersRefused.Add(1)
		tcprelay.Abort(client)
		return
	}
	defer func() {
		s.mu.Lock()
		delete(s.callers, c)
		s.mu.Unlock()
	}()
	defer context.AfterFunc(s.m.ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.abort()
	})()
	box, err := s.dialCaller(p.Port)
	if e := tcprelay.Bound(client, callerBuffer); err == nil && e != nil { // it is closed
		box.Close()
		err = e
	}
	if err != nil {
		s.m.counters.callersRefused.Add(1)
		s.m.log.Debug("connecting a published port", "session", s.key.String(), "port", p.Port, "error", err)
		tcprelay.Abort(client)
		return
	}
	s.mu.Lock()
	admitted = slices.Contains(s.published, p) && s.m.ctx.Err() == nil
	if c.box = box; !admitted {
		c.abort()
		s.mu.Unlock()
		return
	}
	s.m.wg.Add(1)
	u := s.useLocked() // a connection uses the session, an attempt does not
	s.mu.Unlock()
	defer u.release()
	s.m.counters.callers.Add(1)
	in, out, err := tcprelay.Relay(client, box, callerIdle)
	s.m.counters.callersIn.Add(uint64(in))
	s.m.counters.callersOut.Add(uint64(out))
	if err != nil {
		s.m.log.Debug("a connection to a published port broke", "session", s.key.String(), "port", p.Host, "error", err)
	}
}

// dialCaller connects to a port of the box.
func (s *session) dialCaller(port int) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, callerDial)
	defer cancel()
	if err := s.takeOver(ctx); err != nil {
		return nil, err
	}
	conn, err := s.dial(ctx, port)
	if err != nil {
		return nil, err
	}
	box, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("the engine connects with a %T: %w", conn, errors.ErrUnsupported)
	}
	if err := tcprelay.Bound(box, callerBuffer); err != nil {
		box.Close()
		return nil, err
	}
	return box, nil
}

// publishedLocked lists the published ports.
func (s *session) publishedLocked() (list []PublishedPort) {
	open := map[*publishedPort]int{}
	for c := range maps.Keys(s.callers) {
		open[c.port]++
	}
	address := ""
	if at := s.m.policy.PublishPool().Address; at.IsValid() {
		address = at.String()
	}
	for _, p := range s.published {
		list = append(list, PublishedPort{p.Port, p.Host, address, open[p], p.reason})
	}
	return list
}
