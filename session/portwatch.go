package session

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine"
	"golang.org/x/time/rate"
)

// No kernel reports that a socket begins to listen (sock_diag(7) multicasts the end of connections
// only), so somebody has to look. A look is one request to the launcher and two dumps of the kernel's
// listeners, 0.3 ms of processor time here. The manager looks at the boxes of a tenant every portsEvery
// while somebody watches, and without that once, portsEvery after a command has ended, or a managed
// process has started or ended. All looks together take at most a tenth of the time.
//
// The kernel does not say which process listens, and the daemon has no right to find out.

const (
	portsEvery = 500 * time.Millisecond
	portsShare = 10 // the pause is so many times as long as the looks took
	// portsIdle is how often the manager looks at a watched session in which nothing runs that it
	// knows of: a command may have left a process behind.
	portsIdle = 10 * time.Second
	// maxKnownPorts bounds the ports of a box that are known to listen. Further ones have no events.
	maxKnownPorts = 256
	// Of a box that opens and closes more ports per second, events come later.
	portEventRate, portEventBurst = 10, 64
)

// portWatch says where the manager looks.
type portWatch struct {
	wake chan struct{} // has room for one

	mu       sync.Mutex
	watchers map[string]int // by tenant; "" watches all
	due      map[*session]bool
}

// boxPorts are the ports on which programs of one box listen, as far as events have told. session.mu
// guards it.
type boxPorts struct {
	box     engine.LiveBox
	known   map[int]string // address by port
	looked  time.Duration  // on the clock of m.now
	limit   *rate.Limiter
	changed chan struct{} // closed with the next change; nil: nobody waits
}

// WatchPorts makes the manager look regularly on which ports programs of a tenant's boxes listen, with
// "" those of all tenants, until stop is called: their opening and closing become events.
func (m *Manager) WatchPorts(tenant string) (stop func()) {
	w := &m.portWatch
	w.mu.Lock()
	w.watchers[tenant]++
	w.mu.Unlock()
	w.rouse()
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.watchers[tenant]--; w.watchers[tenant] == 0 {
			delete(w.watchers, tenant)
		}
	})
}

// PortsChanged returns a channel that is closed when the next port opens or closes that an event of
// session key reports. It makes nobody look. Nil: there is no such session.
func (m *Manager) PortsChanged(key Key) <-chan struct{} {
	s, err := m.find(key)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ports.changed == nil {
		s.ports.changed = make(chan struct{})
	}
	return s.ports.changed
}

// Ports lists the ports on which programs of the session's box listen; none without a box. It does not
// count as use.
func (m *Manager) Ports(key Key) ([]engine.Port, error) {
	box, err := m.Peek(key)
	if err != nil || box == nil {
		return nil, err
	}
	s, err := m.find(key)
	if err != nil {
		return nil, err
	}
	return s.lookAtPorts(box)
}

func (w *portWatch) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// lookSoon makes the manager look at the ports of s once.
func (s *session) lookSoon() {
	w := &s.m.portWatch
	w.mu.Lock()
	w.due[s] = true
	w.mu.Unlock()
	w.rouse()
}

// watchPorts looks until the manager closes.
func (m *Manager) watchPorts() {
	w := &m.portWatch
	for {
		select {
		case <-w.wake:
		case <-m.ctx.Done():
			return
		}
		for pause := portsEvery; ; {
			select { // a server needs a moment before it listens
			case <-time.After(pause):
			case <-m.ctx.Done():
				return
			}
			w.mu.Lock()
			due, watchers := w.due, maps.Clone(w.watchers)
			w.due = map[*session]bool{}
			w.mu.Unlock()
			if len(due) == 0 && len(watchers) == 0 {
				break
			}
			began := time.Now()
			var list []*session
			if len(watchers) > 0 {
				list = m.all("")
			} else {
				list = slices.Collect(maps.Keys(due))
			}
			for _, s := range list {
				watched := watchers[""]+watchers[s.key.Tenant] > 0
				if m.ctx.Err() != nil {
					return
				}
				s.mu.Lock()
				box, alive := s.box, s.aliveLocked() && !s.removing
				busy := s.execs+s.running > 0 || len(s.ports.known) > 0 || s.ports.box != box || m.now()-s.ports.looked >= portsIdle
				s.mu.Unlock()
				if alive && (due[s] || watched && busy) {
					_, _ = s.lookAtPorts(box) // a box that ends; or the next look finds out
				}
			}
			pause = max(portsEvery, portsShare*time.Since(began))
		}
	}
}

// lookAtPorts lists the ports on which programs of box listen, and publishes what has changed. The
// listeners of the session's proxy are none of them.
func (s *session) lookAtPorts(box engine.LiveBox) ([]engine.Port, error) {
	s.looking.Lock() // one look at a time, so that an older one does not take back a newer one
	defer s.looking.Unlock()
	ports, err := box.Ports()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	proxied := s.proxy != nil
	s.mu.Unlock()
	if proxied {
		own := egress.Addresses()
		ports = slices.DeleteFunc(ports, func(p engine.Port) bool {
			return p.Protocol == "tcp" && slices.ContainsFunc(own, func(at netip.AddrPort) bool { return p.Address == at.Addr().String() && p.Port == int(at.Port()) })
		})
	}
	now := map[int]string{}
	for _, p := range ports {
		if _, twice := now[p.Port]; strings.HasPrefix(p.Protocol, "tcp") && !twice {
			now[p.Port] = p.Address
		}
	}
	s.mu.Lock()
	if s.box != box {
		s.mu.Unlock()
		return ports, nil
	}
	known := &s.ports
	known.looked = s.m.now()
	if known.box != box { // ports of an earlier box have closed with it
		known.box, known.known = box, map[int]string{}
		known.limit = rate.NewLimiter(portEventRate, portEventBurst)
	}
	var events []Event
	tell := func(kind EventType, port int, address string) bool {
		if !known.limit.Allow() { // a later look tells
			return false
		}
		e := s.eventLocked(kind, system, map[string]any{"port": port, "address": address})
		s.m.events.publish(e)
		events = append(events, e)
		return true
	}
	for _, port := range slices.Sorted(maps.Keys(known.known)) {
		if _, open := now[port]; !open && tell(EventPortClosed, port, known.known[port]) {
			delete(known.known, port)
		}
	}
	for _, port := range slices.Sorted(maps.Keys(now)) {
		if _, told := known.known[port]; !told && len(known.known) < maxKnownPorts && tell(EventPortOpened, port, now[port]) {
			known.known[port] = now[port]
		}
	}
	if len(events) > 0 && known.changed != nil {
		close(known.changed)
		known.changed = nil
	}
	s.mu.Unlock()
	for _, e := range events {
		s.m.logEvent(e)
	}
	return ports, nil
}
