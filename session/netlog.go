package session

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/egress"
	"golang.org/x/time/rate"
)

const (
	// networkRecent is how many ended connections of a box are shown.
	networkRecent = 100
	// Of the refused connections of a box, so many per second become events and lines of the
	// audit log, and of the opened and ended ones so many become events. The next one says how
	// many were left out.
	reportRate, reportBurst = 20, 200
	// The boxes of a tenant together write so many lines of the audit log per second about allowed
	// connections, and as many about refused ones. tenantBurst lines are at 500 bytes 2 MB, a small
	// part of what the log keeps by default. Beyond that, refused connections are only counted, and
	// allowed ones to a destination that the log has are summed up. Those to another one wait.
	tenantRate, tenantBurst = 200, 4000
	linesPerAllowed         = 2 // when it is opened, and when it ends
	// sumEvery is how often sums are written, and maxDestinations how many destinations of a box
	// are summed up.
	sumEvery        = 10 * time.Second
	maxDestinations = 256
	// maxKeptDenials is how many refusals are kept with a managed process.
	maxKeptDenials = 20
)

// networkLog records the connections of one box. Its lock comes after all others.
type networkLog struct {
	s   *session
	box string

	mu      sync.Mutex
	open    map[uint64]*sum      // connections that were admitted and have not ended, by ID; nil: with lines of its own
	sums    map[destination]*sum // of the destinations that the audit log has
	timer   *time.Timer          // calls writeSums; nil unless there is something to write
	writing sync.WaitGroup       // the timer
	// finished means that the proxy has ended.
	finished bool
	recent   []egress.Connection
	next     int // the oldest of recent once it is full: a ring
	refused  thinned
	allowed  thinned
}

// destination is what connections have in common that are summed up.
type destination struct {
	name, protocol, rule string
	address              netip.AddrPort // if the program asked for it by address
	port                 uint16
}

// sum counts the connections to one destination that have no lines of their own.
type sum struct {
	opened, ended, failed int64
	in, out               int64
}

// tenantLines bounds the lines of each tenant. Its zero value is ready. Its lock comes after that of
// networkLog.
type tenantLines struct {
	mu      sync.Mutex
	tenants map[string]tenantLimits
	swept   time.Time // when those were last dropped that are full, which are like new ones
}

type tenantLimits struct{ allowed, refused *rate.Limiter }

func (l tenantLimits) isFull(now time.Time) bool {
	return l.allowed.TokensAt(now) >= tenantBurst && l.refused.TokensAt(now) >= tenantBurst
}

// of returns the limits of tenant.
func (t *tenantLines) of(tenant string) tenantLimits {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, ok := t.tenants[tenant]
	if ok {
		return l
	}
	if now := time.Now(); now.Sub(t.swept) >= time.Second {
		t.swept = now
		maps.DeleteFunc(t.tenants, func(_ string, l tenantLimits) bool { return l.isFull(now) })
	}
	if t.tenants == nil {
		t.tenants = map[string]tenantLimits{}
	}
	l = tenantLimits{rate.NewLimiter(tenantRate, tenantBurst), rate.NewLimiter(tenantRate, tenantBurst)}
	t.tenants[tenant] = l
	return l
}

// thinned lets reports through at a rate, and counts the others.
type thinned struct {
	limit  *rate.Limiter
	missed int
}

// report reports whether one may pass, and how many before it did not. also is another limit; nil:
// there is none.
func (t *thinned) report(also *rate.Limiter) (pass bool, missed int) {
	if !t.limit.Allow() || also != nil && !also.Allow() {
		t.missed++
		return false, 0
	}
	missed, t.missed = t.missed, 0
	return true, missed
}

func newNetworkLog(s *session, box string) *networkLog {
	limit := func() thinned { return thinned{limit: rate.NewLimiter(reportRate, reportBurst)} }
	return &networkLog{s: s, box: box, open: map[uint64]*sum{}, sums: map[destination]*sum{}, refused: limit(), allowed: limit()}
}

// admit records a connection that the rules allow, before it is made. After an error it must not be
// made.
func (n *networkLog) admit(ctx context.Context, c egress.Connection) error {
	to := destination{c.Name, c.Protocol, c.Rule, c.Address, c.Port}
	lines := n.s.m.lines.of(n.s.key.Tenant).allowed
	details := connectionDetails(c)
	var summed *sum
	if !lines.AllowN(time.Now(), linesPerAllowed) {
		summed = n.count(to)
		if summed == nil {
			if err := lines.WaitN(ctx, linesPerAllowed); err != nil {
				return err
			}
		}
	}
	if summed == nil {
		if err := n.s.m.audit(system, n.s.key, audit.Entry{Action: "connect", Box: n.box, Decision: audit.Allow, Details: details}); err != nil {
			return err
		}
	}
	n.s.m.counters.network.open.Add(1)
	n.mu.Lock()
	n.open[c.ID] = summed
	if n.sums[to] == nil && len(n.sums) < maxDestinations {
		n.sums[to] = &sum{}
	}
	pass, missed := n.allowed.report(nil)
	n.mu.Unlock()
	if pass {
		n.publish(details, missed)
	}
	return nil
}

// count adds a connection to the sum of its destination, and returns the sum; nil if the audit log does not
// have the destination.
func (n *networkLog) count(to destination) *sum {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.sums[to]
	if s != nil {
		s.opened++
		n.writeLater(sumEvery)
	}
	return s
}

// writeLater has the sums written after a pause, unless they are due already. The caller holds n.mu.
func (n *networkLog) writeLater(pause time.Duration) {
	if n.timer == nil && !n.finished {
		n.writing.Add(1)
		n.timer = time.AfterFunc(pause, func() {
			defer n.writing.Done()
			n.writeSums()
		})
	}
}

// writeSums writes a line for each destination with connections that have none.
func (n *networkLog) writeSums() {
	n.mu.Lock()
	n.timer = nil
	var entries []audit.Entry
	for to, s := range n.sums {
		if *s == (sum{}) {
			continue
		}
		details := connectionDetails(egress.Connection{Name: to.name, Protocol: to.protocol, Rule: to.rule, Address: to.address, Port: to.port, Allowed: true})
		delete(details, "connection")
		details["state"], details["opened"], details["ended"], details["failed"], details["in"], details["out"] = "sum", s.opened, s.ended, s.failed, s.in, s.out
		*s = sum{}
		entries = append(entries, audit.Entry{Action: "connect", Box: n.box, Decision: audit.Done, Details: details, Ends: true})
	}
	n.mu.Unlock()
	// Without waiting, since the connections were made. Lines of other destinations wait longer instead.
	debt := n.s.m.lines.of(n.s.key.Tenant).allowed.ReserveN(time.Now(), len(entries)).Delay()
	for _, e := range entries {
		if n.s.m.audit(system, n.s.key, e) != nil { // it has reported the error
			n.mu.Lock()
			clear(n.sums) // no connection is made any more without a line before it
			n.mu.Unlock()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sums {
		if *s != (sum{}) {
			n.writeLater(max(sumEvery, debt))
		}
	}
}

// observe records a connection that has ended or was refused.
func (n *networkLog) observe(c egress.Connection) {
	n.mu.Lock()
	summed, admitted := n.open[c.ID]
	delete(n.open, c.ID)
	c.Allowed = c.Allowed && admitted
	if summed != nil {
		summed.ended++
		summed.in += c.In
		summed.out += c.Out
		if c.Reason != "" {
			summed.failed++
		}
		n.writeLater(sumEvery)
	}
	if len(n.recent) < networkRecent {
		n.recent = append(n.recent, c)
	} else {
		n.recent[n.next] = c
		n.next = (n.next + 1) % networkRecent
	}
	var pass bool
	var missed int
	if admitted {
		pass, missed = n.allowed.report(nil)
	} else {
		pass, missed = n.refused.report(n.s.m.lines.of(n.s.key.Tenant).refused)
	}
	n.mu.Unlock()
	n.s.m.counters.network.ended(c, admitted)
	if !pass && !admitted {
		return
	}
	details := connectionDetails(c)
	if missed > 0 && !admitted {
		details["unreported"] = missed
	}
	decision := audit.Done
	if !c.Allowed {
		decision = audit.Deny
	}
	audited := maps.Clone(details)
	// For the operator's eyes only.
	if c.Refused.IsValid() {
		audited["leads_to"] = c.Refused.String()
	}
	if c.Error != "" && c.Error != c.Reason {
		audited["error"] = c.Error
	}
	if summed == nil {
		_ = n.s.m.audit(system, n.s.key, audit.Entry{Action: "connect", Box: n.box, Decision: decision, Reason: c.Reason, Details: audited, Ends: admitted}) // reports its error
	}
	if pass {
		n.publish(details, missed)
	}
}

// publish publishes the event of a connection. missed events of its kind were left out before it.
func (n *networkLog) publish(details map[string]any, missed int) {
	if missed > 0 {
		details["unreported"] = missed
	}
	n.s.publish(EventConnection, system, n.box, details)
}

// finish records how many refused connections were left out since the last one. The proxy has ended.
func (n *networkLog) finish() {
	n.mu.Lock()
	n.finished = true
	if n.timer != nil && n.timer.Stop() {
		n.writing.Done()
	}
	n.mu.Unlock()
	n.writing.Wait()
	n.writeSums()
	n.mu.Lock()
	refused, allowed := n.refused.missed, n.allowed.missed
	n.refused.missed, n.allowed.missed = 0, 0
	n.mu.Unlock()
	if refused > 0 {
		details := map[string]any{"state": "denied", "unreported": refused}
		_ = n.s.m.audit(system, n.s.key, audit.Entry{Action: "connect", Box: n.box, Decision: audit.Deny, Details: details, Ends: true}) // reports its error
		n.publish(details, refused)
	}
	if allowed > 0 {
		n.publish(map[string]any{"state": "ended"}, allowed)
	}
}

// last returns the last ended connections, newest first.
func (n *networkLog) last() []egress.Connection {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := slices.Concat(n.recent[n.next:], n.recent[:n.next])
	slices.Reverse(list)
	return list
}

func connectionDetails(c egress.Connection) map[string]any {
	d := map[string]any{"state": connectionState(c), "connection": c.ID, "port": c.Port, "protocol": c.Protocol, "allowed": c.Allowed, "rule": c.Rule}
	if c.Name != "" {
		d["name"] = c.Name
	}
	if c.Address.IsValid() {
		d["address"] = c.Address.Addr().String()
	}
	if c.Reason != "" {
		d["reason"] = c.Reason
	}
	if c.Ended {
		d["in"], d["out"], d["seconds"] = c.In, c.Out, c.Duration.Seconds()
	}
	return d
}

func connectionState(c egress.Connection) string {
	switch {
	case !c.Allowed:
		return "denied"
	case c.Ended:
		return "ended"
	}
	return "open"
}

// Connection is a connection of a box through its proxy.
type Connection = egress.Connection

// Denial counts what was refused.
type Denial = egress.Denial

// NetworkView is what is known of the network of a session's box.
type NetworkView struct {
	On     bool         // it leads out of the box now
	Live   []Connection // oldest first
	Recent []Connection // that have ended, newest first; the last 100
	Denied []Denial     // most frequent first
}

// Network describes the network of session key since its box was made or taken over.
// It does not count as use.
func (m *Manager) Network(key Key) (v NetworkView, err error) {
	s, err := m.findSettled(key)
	if err != nil {
		return v, err
	}
	s.mu.Lock()
	proxy, seen := s.proxy, s.seen
	v.On = proxy != nil && s.record.Sensitive == nil
	s.mu.Unlock()
	if proxy != nil {
		v.Live, v.Denied = proxy.Live(), proxy.Denials()
	}
	if seen != nil {
		v.Recent = seen.last()
	}
	return v, nil
}

// refusals is what the proxy of a session has refused at some time.
type refusals struct {
	proxy *egress.Proxy // nil: there was none
	until []Denial
}

// refusals returns what the session's proxy has refused so far.
func (s *session) refusals() refusals {
	s.mu.Lock()
	proxy := s.proxy
	s.mu.Unlock()
	if proxy == nil {
		return refusals{}
	}
	return refusals{proxy, proxy.Denials()}
}

// refusedSince returns what was refused after before, also by a proxy that has replaced that one or
// has ended since.
func (s *session) refusedSince(before refusals) (list []Denial) {
	if before.proxy != nil {
		had := map[Denial]int64{}
		for _, d := range before.until {
			n := d.Count
			d.Count = 0
			had[d] = n
		}
		for _, d := range before.proxy.Denials() {
			was := d
			was.Count = 0
			if d.Count -= had[was]; d.Count > 0 {
				list = append(list, d)
			}
		}
	}
	if now := s.refusals(); now.proxy != before.proxy {
		list = append(list, now.until...)
	}
	return list
}

// mostDenied returns the most frequent of list, which it sorts.
func mostDenied(list []Denial) []Denial {
	slices.SortStableFunc(list, func(a, b Denial) int { return cmp.Compare(b.Count, a.Count) })
	return list[:min(len(list), maxKeptDenials)]
}
