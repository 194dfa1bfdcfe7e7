package agent

import (
	"slices"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// table holds the managed processes of the box.
type table struct {
	mu        sync.Mutex
	processes map[uint32]*managed
	last      uint32   // the last number that was given to a process
	client    *client  // the client to notify of ends: the last one that launched or listed
	old       []string // keys of forgotten processes
}

// add gives p a number, if there is room for it.
func (t *table) add(p *managed) *wire.FailedMsg {
	t.mu.Lock()
	defer t.mu.Unlock()
	rings := uint64(0)
	known := slices.Contains(t.old, p.key)
	for _, other := range t.processes {
		known = known || other.key == p.key
		rings += other.rings()
	}
	switch {
	case known:
		return failed(wire.StepKey, unix.EEXIST)
	case len(t.processes) == wire.MaxManaged:
		return failed(wire.StepTable, unix.EUSERS)
	case rings+p.rings() > wire.MaxRings:
		return failed(wire.StepRing, unix.ENOSPC)
	}
	t.last++
	p.number = t.last
	p.in.number = p.number
	for _, o := range p.outputs {
		o.number = p.number
	}
	if t.processes == nil {
		t.processes = map[uint32]*managed{}
	}
	t.processes[p.number] = p
	return nil
}

// rings returns the size of all rings of p.
func (p *managed) rings() (size uint64) {
	for _, o := range p.outputs {
		size += o.ring.size
	}
	return size
}

func (t *table) remove(p *managed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.processes, p.number)
}

// born notes that p runs. c gets told of its end, unless a later client comes.
func (t *table) born(c *client, p *managed, pid int) (wire.ManagedMsg, []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.client = c.orLater(t.client)
	p.pid, p.began = pid, time.Now()
	return p.describeLocked()
}

// ended notes the end of p and tells the client.
func (t *table) ended(p *managed, status unix.WaitStatus, wall time.Duration) {
	m := wire.EndedMsg{Status: uint32(status), Wall: uint64(wall)}
	for i, o := range p.outputs {
		m.Heads[i], _ = o.state()
	}
	t.mu.Lock()
	p.ended, p.status, p.wall = true, status, wall
	c := t.client
	t.mu.Unlock()
	c.send(wire.TypeEnded, p.number, m.Marshal())
}

// find returns a process that has been started, or nil.
func (t *table) find(number uint32) *managed {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.processes[number]
	if p == nil || p.pid == 0 {
		return nil
	}
	return p
}

// list tells c of all processes. No other frame is sent to c meanwhile, so that c knows the
// processes that later frames are about.
func (t *table) list(c *client, id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.client = c.orLater(t.client)
	n := uint32(0)
	for _, p := range t.processes {
		if p.pid != 0 {
			p.in.attend(c)
			m, rings := p.describeLocked()
			c.sendLocked(wire.TypeManaged, id, m.Marshal(), rings...)
			n++
		}
	}
	m := wire.ListedMsg{Count: n}
	c.sendLocked(wire.TypeListed, id, m.Marshal())
}

// forget frees the resources of a process that has ended.
func (t *table) forget(number uint32) *wire.FailedMsg {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.processes[number]
	switch {
	case p == nil:
		return failed(wire.StepFind, unix.ESRCH)
	case !p.ended:
		return failed(wire.StepFind, unix.EBUSY)
	}
	delete(t.processes, number)
	if t.old = append(t.old, p.key); len(t.old) > wire.OldKeys {
		t.old = slices.Clone(t.old[1:])
	}
	p.close()
	return nil
}

// exited takes the status of a process that was reaped.
func (t *table) exited(number uint32, status unix.WaitStatus) {
	if p := t.find(number); p != nil {
		p.exited <- status
	}
}
