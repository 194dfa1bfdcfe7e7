package agent

import (
	"slices"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// handleRequest carries out a frame about managed processes that has an answer. It returns
// false if the peer broke a rule.
func (a *agent) handleRequest(c *client, frame *wire.Frame) bool {
	switch frame.Type {
	case wire.TypeLaunch:
		var m wire.LaunchMsg
		if m.Unmarshal(frame.Body) != nil || len(frame.FDs) != m.LaunchFDs() {
			return false
		}
		a.launch(c, frame.ID, &m, frame.FDs)
		return true
	case wire.TypeForget:
		var m wire.ForgetMsg
		if m.Unmarshal(frame.Body) != nil || len(frame.FDs) != 0 {
			return false
		}
		if failed := a.managed.forget(m.Number); failed != nil {
			c.send(wire.TypeFailed, frame.ID, failed.Marshal())
		} else {
			c.send(wire.TypeForgotten, frame.ID, nil)
		}
		return true
	}
	if len(frame.Body)+len(frame.FDs) != 0 {
		return false
	}
	a.managed.list(c, frame.ID)
	return true
}

// launch starts a managed process with the descriptors of a Launch frame.
func (a *agent) launch(c *client, id uint32, m *wire.LaunchMsg, fds []int) {
	born := 1 + int(m.Spawn.Tasks)
	p, child, err := newManaged(m, fds[born:])
	if err != nil {
		c.send(wire.TypeFailed, id, failed(wire.StepRing, err).Marshal())
		return
	}
	defer closeFDs(child[:])
	if failed := a.managed.add(p); failed != nil {
		p.close()
		c.send(wire.TypeFailed, id, failed.Marshal())
		return
	}
	a.reaper.birth(key{id: p.number}, func(pid *int32) (int, *wire.FailedMsg) {
		return a.spawn(&m.Spawn, slices.Concat(child[:], fds[:born]), pid)
	}, func(pid int, failed *wire.FailedMsg) {
		if failed != nil {
			a.managed.remove(p)
			p.close()
			c.send(wire.TypeFailed, id, failed.Marshal())
			return
		}
		described, rings := a.managed.born(c, p, pid)
		c.send(wire.TypeManaged, id, described.Marshal(), rings...)
		go p.run(a.managed)
	})
}

// handleManaged carries out a frame about one managed process. It returns false if the peer
// broke a rule. An unknown process may have been forgotten meanwhile.
func (a *agent) handleManaged(c *client, frame *wire.Frame) bool {
	m := managedMessage(frame.Type)
	if m == nil || len(frame.FDs) != 0 || m.Unmarshal(frame.Body) != nil {
		return false
	}
	p := a.managed.find(frame.ID)
	if p == nil {
		return true
	}
	switch m := m.(type) {
	case *wire.WatchMsg:
		if int(m.Stream) >= len(p.outputs) {
			return false
		}
		p.outputs[m.Stream].watch(c, m.Offset)
	case *wire.ReleaseMsg:
		if int(m.Stream) >= len(p.outputs) {
			return false
		}
		p.outputs[m.Stream].release(m.Offset)
	case *wire.InputMsg:
		return p.in.add(c, m.Offset, m.Data)
	case *wire.CloseInputMsg:
		return p.in.end(c, m.Offset)
	case *wire.SignalMsg:
		a.reaper.signal(key{id: frame.ID}, unix.Signal(m.Signal))
	case *wire.ResizeMsg:
		p.resize(m.Rows, m.Cols)
	}
	return true
}

// managedMessage returns an empty message for a frame about one process, or nil for other
// frames.
func managedMessage(typ byte) interface{ Unmarshal([]byte) error } {
	switch typ {
	case wire.TypeWatch:
		return new(wire.WatchMsg)
	case wire.TypeRelease:
		return new(wire.ReleaseMsg)
	case wire.TypeInput:
		return new(wire.InputMsg)
	case wire.TypeCloseInput:
		return new(wire.CloseInputMsg)
	case wire.TypeManagedSignal:
		return new(wire.SignalMsg)
	case wire.TypeResize:
		return new(wire.ResizeMsg)
	}
	return nil
}
