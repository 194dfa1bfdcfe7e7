package session

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/choose"
)

// Stats are counts since Open, except States, ExecsRunning, ProcessesRunning, Paused,
// Subscribers and Boxes, which are current.
type Stats struct {
	States           map[State]int
	ExecsRunning     int
	ProcessesRunning int
	Paused           int // sessions that are running, and paused
	Subscribers      int
	Created          uint64 // sessions created
	Reused           uint64 // uses of an existing session
	Recreated        uint64 // boxes built in place of lost ones
	Adopted          uint64 // boxes taken over at Open
	Discarded        uint64 // boxes without an owner, removed at Open
	Expired          uint64 // sessions removed by their TTL or lifetime
	Removed          uint64 // sessions removed by request
	BoxesLost        uint64
	ProcessesStarted uint64
	EventsMissed     uint64 // by slow subscribers
	Verdicts         map[engine.Verdict]uint64
	Network          NetworkStats
	Boxes            map[choose.Pair]int          // of sessions that have one now
	Engines          map[choose.Pair]choose.Count // boxes built, and not built, since Open
	// Connections through published ports, those that were reset because nothing listened in the box or
	// because there were too many, and the bytes of those that have ended, in and out of boxes.
	Callers, CallersRefused, CallersIn, CallersOut uint64
}

// NetworkStats count the connections of boxes with a network. Open is current.
type NetworkStats struct {
	Allowed, Denied uint64 // that have ended, or were refused
	In, Out         uint64 // bytes of those that have ended
	Open            int64
}

// Stats returns the counters.
func (m *Manager) Stats() Stats {
	c := &m.counters
	st := Stats{
		States: map[State]int{}, Boxes: map[choose.Pair]int{}, Engines: m.engines.Counts(),
		Created: c.created.Load(), Reused: c.reused.Load(), Recreated: c.recreated.Load(),
		Adopted: c.adopted.Load(), Discarded: c.discarded.Load(),
		Expired: c.expired.Load(), Removed: c.removed.Load(), BoxesLost: c.lost.Load(),
		ProcessesStarted: c.started.Load(),
		Network:          NetworkStats{c.network.allowed.Load(), c.network.denied.Load(), c.network.in.Load(), c.network.out.Load(), c.network.open.Load()},
		Callers:          c.callers.Load(), CallersRefused: c.callersRefused.Load(), CallersIn: c.callersIn.Load(), CallersOut: c.callersOut.Load(),
	}
	st.Subscribers, st.EventsMissed = m.events.stats()
	c.mu.Lock()
	st.Verdicts = maps.Clone(c.verdicts)
	c.mu.Unlock()
	for _, s := range m.all("") {
		s.mu.Lock()
		st.States[s.record.State]++
		st.ExecsRunning += s.execs
		st.ProcessesRunning += s.running
		if s.box != nil && s.record.State != Failed {
			st.Boxes[choose.Pair{Engine: s.record.Built.Engine, Isolation: s.record.Built.Isolation}]++
		}
		if s.pausedLocked() {
			st.Paused++
		}
		s.mu.Unlock()
	}
	return st
}

// counters are the counters of [Stats].
type counters struct {
	created, reused, recreated, adopted, discarded, expired, removed, lost, started atomic.Uint64
	network                                                                         networkCounters
	callers, callersRefused, callersIn, callersOut                                  atomic.Uint64

	mu       sync.Mutex
	verdicts map[engine.Verdict]uint64
}

// networkCounters are the counters of [NetworkStats].
type networkCounters struct {
	allowed, denied, in, out atomic.Uint64
	open                     atomic.Int64
}

// ended counts a connection that has ended or was refused. admitted says that it counted as open.
func (n *networkCounters) ended(c egress.Connection, admitted bool) {
	if admitted {
		n.open.Add(-1)
	}
	if c.Allowed {
		n.allowed.Add(1)
	} else {
		n.denied.Add(1)
	}
	n.in.Add(uint64(c.In))
	n.out.Add(uint64(c.Out))
}

func (c *counters) verdict(v engine.Verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.verdicts == nil {
		c.verdicts = map[engine.Verdict]uint64{}
	}
	c.verdicts[v]++
}
