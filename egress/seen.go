package egress

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/boxd/boxd/egress/rules"
)

// Connection is what is known of a tunnel or of one HTTP request. Config.Admit gets it when it is
// allowed, and Config.Observe when it ends or is refused.
type Connection struct {
	ID       uint64         `json:"id"`               // unique in its Proxy, from 1
	Name     string         `json:"name,omitempty"`   // canonical; "" if the program gave an address
	Port     uint16         `json:"port,omitempty"`   // 0 if the request could not be read, or names no destination
	Address  netip.AddrPort `json:"address,omitzero"` // that was dialled or asked for; none through an upstream proxy, which has its own
	Protocol string         `json:"protocol"`         // "connect", "socks5", "http", or "inject" for http sent as https
	In       int64          `json:"in"`               // bytes that the box received
	Out      int64          `json:"out"`              // bytes that the box sent
	Allowed  bool           `json:"allowed"`
	Rule     string         `json:"rule"`             // the rule that decided
	Reason   string         `json:"reason,omitempty"` // why it was denied, failed or was closed by boxd
	// Refused is the address that the name leads to, if that is why the connection was
	// denied. It is for the operator only, because it tells about names of his network.
	Refused netip.Addr `json:"-"`
	// Error is the whole text of the error that Reason stands for, if it failed. It is for the
	// operator only, because it may have addresses of his network.
	Error    string        `json:"-"`
	Start    time.Time     `json:"start"`
	Duration time.Duration `json:"duration"`
	Ended    bool          `json:"ended"`
}

// Denial counts refusals of one destination by one rule.
type Denial struct {
	Kind  string `json:"kind"` // "network"
	What  string `json:"what"` // "example.com:443"; "…" for all that exceed the table
	Rule  string `json:"rule"`
	Count int64  `json:"count"`
}

// maxDenials bounds the table of denials, which a box fills with names of its choice.
const maxDenials = 256

type denialKey struct{ what, rule string }

// denied counts a refusal.
func (p *Proxy) denied(what, rule string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := denialKey{what, rule}
	if _, ok := p.denials[key]; !ok && len(p.denials) >= maxDenials {
		key = denialKey{"…", ""}
	}
	p.denials[key]++
}

// Denials returns the refusals so far, most frequent first, at most 257.
func (p *Proxy) Denials() []Denial {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]Denial, 0, len(p.denials))
	for k, n := range p.denials {
		list = append(list, Denial{"network", k.what, k.rule, n})
	}
	slices.SortFunc(list, func(a, b Denial) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.What, b.What), cmp.Compare(a.Rule, b.Rule))
	})
	return list
}

// Spent returns the bytes that count against Limits.Bytes so far, with Config.Spent.
func (p *Proxy) Spent() int64 { return p.spent.Load() }

// Live returns the connections that are open now, oldest first.
func (p *Proxy) Live() []Connection {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]Connection, 0, len(p.flows))
	for f := range p.flows {
		if f.reason != "" { // it is being closed
			continue
		}
		list = append(list, f.snapshotLocked())
	}
	slices.SortFunc(list, func(a, b Connection) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Refusal is the error for a destination that the rules do not allow.
type Refusal struct {
	Target  rules.Target
	Verdict rules.Verdict
	// Address is the address that the name of Target leads to, if that is the reason. It is
	// not for the box.
	Address netip.Addr
}

// ofName returns a verdict about an address for the box, which does not learn the addresses
// of names: they may be those of an internal network.
func ofName(t rules.Target, v rules.Verdict) rules.Verdict {
	if v.Allowed || t.Name == "" {
		return v
	}
	v.Reason = "it leads to an address that is not public"
	if v.Rule != "address" {
		v.Reason = "it leads to an address that a rule forbids"
	}
	return v
}

// Error is one line for the program in the box.
func (r *Refusal) Error() string {
	return r.Target.String() + " is not allowed: " + r.Verdict.Reason
}
