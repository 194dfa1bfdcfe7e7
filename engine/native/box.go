package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
)

// box is a live box of a launcher. It owns the connection to the agent and the
// processes that were started over it.
type box struct {
	engine  *core
	id      string
	spec    engine.Spec // with defaults; Limits and Mounts under mu
	hostUID int         // host ids of the box's user 0
	pid     int         // of PID 1 on the host, see pidfd
	pidfd   *os.File    // of PID 1; it tells reliably whether PID 1 lives
	agent   *wire.Conn
	slots   *slots
	volumes *volumeSet
	warm    *warmth
	done    chan struct{} // closed when the agent is gone
	watched chan struct{} // closed when watch no longer uses pidfd
	events  *events
	pauses  *pauses
	// managedSlots are the slots of managed processes of earlier clients, by name,
	// with their keys.
	managedSlots map[string]string

	mu        sync.Mutex
	next      uint32
	processes map[uint32]*process
	launched  map[*account]struct{} // of managed processes
	managed   *managedLink          // nil before the first managed process
	limits    engine.Limits
	lost      bool
	ending    bool // the launcher was asked to remove the box
	kept      bool // a command was allowed to leave processes behind
	warming   int  // how many zygotes are loading or making spares

	spare []*os.File // unconnected sockets in the box's network

	opening sync.Mutex // held while managed is made

	running sync.WaitGroup // registered commands, until their last step

	askFate    sync.Once
	memoryFate bool // what lostToMemory returns

	remove sync.Once
	err    error
}

// newBox takes ownership of files.
func newBox(c *core, spec engine.Spec, m rpc.Created, files []*os.File) (_ *box, err error) {
	var undo cleanup.Stack
	defer undo.Undo(&err)
	left := files
	undo.Push(func() error { linux.CloseAll(left); return nil })
	if len(files) < 2+len(m.Volumes) {
		return nil, fmt.Errorf("%d descriptors for %d volumes: %w", len(files), len(m.Volumes), wire.ErrProtocol)
	}
	left = files[1:]
	agent, err := wire.FileConn(files[0])
	if err != nil {
		return nil, err
	}
	undo.Push(agent.Close)
	agent.RefuseFDs() // no message of an agent on this connection carries any
	b := &box{
		engine:    c,
		id:        m.ID,
		spec:      spec,
		hostUID:   m.HostUID,
		pid:       m.PID,
		agent:     agent,
		done:      make(chan struct{}),
		watched:   make(chan struct{}),
		events:    newEvents(),
		pauses:    newPauses(),
		volumes:   &volumeSet{},
		processes: map[uint32]*process{},
		limits:    spec.Limits,
	}
	left = files[2:]
	if b.pidfd, err = pollable(files[1]); err != nil {
		return nil, err
	}
	undo.Push(b.pidfd.Close)
	b.volumes.add(m.Volumes, files[2:])
	var ready []*slot
	rest := files[2+len(m.Volumes):]
	if m.First.Name != "" {
		var first *slot
		if first, rest, err = newSlot(m.First, rest); err != nil {
			return nil, err
		}
		ready = append(ready, first)
		undo.Push(func() error { first.close(); return nil })
	}
	left = files[2 : 2+len(m.Volumes)]
	carried, err := takeSlots(m.Spares, rest)
	if err == nil {
		err = checkCarried(m, spec)
	}
	if err != nil {
		for _, s := range carried {
			s.close()
		}
		return nil, err
	}
	undo.Release()
	b.slots = newSlots(c, b.id, ready)
	b.warm = newWarmth(b)
	b.warm.carry(m.Warm, carried)
	go b.read()
	go b.watch()
	return b, nil
}

// checkCarried checks what a launcher says about the zygotes of a box: their indexes, and that each
// spare has a slot.
func checkCarried(m rpc.Created, s engine.Spec) error {
	spares := 0
	for _, w := range m.Warm {
		spares += len(w.Spares)
		if w.Zygote < 0 || w.Zygote >= len(s.Zygotes) {
			return fmt.Errorf("zygote %d of %d: %w", w.Zygote, len(s.Zygotes), wire.ErrProtocol)
		}
	}
	if spares != len(m.Spares) {
		return fmt.Errorf("%d slots for %d spares: %w", len(m.Spares), spares, wire.ErrProtocol)
	}
	return nil
}

// watch ends the box when its PID 1 has ended, even if another process still holds the
// agent's end of the connection.
func (b *box) watch() {
	defer close(b.watched)
	if linux.AwaitExit(b.pidfd) == nil {
		b.agent.Close()
	}
}

// ID implements engine.Box.
func (b *box) ID() string { return b.id }

// Done implements engine.Box.
func (b *box) Done() <-chan struct{} { return b.done }

// read passes the agent's frames to the processes. It does not trust the agent, and drops
// frames with unknown ids or out of order.
func (b *box) read() {
	defer close(b.done)
	for {
		frame, err := b.agent.Receive()
		if err != nil {
			break
		}
		b.mu.Lock()
		var to interface{ event(*wire.Frame) } = b.warm
		if p := b.processes[frame.ID]; p != nil {
			to = p.reports
		}
		b.mu.Unlock()
		to.event(frame)
	}
	b.events.close()
	b.warm.lose()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = true
	for _, p := range b.processes {
		p.lostBox()
	}
}

// register gives p an id, which the agent's frames about it carry. The caller calls
// running.Done at the end of p.
func (b *box) register(p *process) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost {
		return fmt.Errorf("box %q: %w", b.id, engine.ErrBoxLost)
	}
	b.next++
	p.id = b.next
	p.alone = len(b.processes)+len(b.launched)+b.warming == 0 && !b.kept
	p.most = b.limits
	for _, other := range b.processes {
		other.alone = false
	}
	b.kept = b.kept || p.cmd.KeepBackground
	b.processes[p.id] = p
	b.running.Add(1)
	return nil
}

// newID returns an id that the agent's frames have not had yet.
func (b *box) newID() uint32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	return b.next
}

// renumber gives p another id: frames about the old one are not about p any more.
func (b *box) renumber(p *process, id uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.processes, p.id)
	p.id, p.reports = id, newReports()
	b.processes[p.id] = p
}

// wasAlone reports whether no other command of the box was alive while p was, so that the
// figures of the box are p's.
func (b *box) wasAlone(p *account) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return p.alone
}

// runs reports whether a command runs. Managed processes do not count.
func (b *box) runs() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.processes) > 0
}

func (b *box) unregister(p *process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.processes, p.id)
}

// Update implements engine.Box.
func (b *box) Update(ctx context.Context, change engine.Change) error {
	if err := change.Validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if change.Limits != nil {
		b.raiseMost(*change.Limits)
	}
	var updated rpc.Updated
	files, err := b.engine.link.call(ctx, rpc.TypeUpdate, rpc.Update{ID: b.id, Change: change}, &updated)
	if err != nil && !errors.Is(err, errTruncated) { // a truncated reply means success without descriptors
		b.note(engine.Change{Detach: updated.Detached})
		b.volumes.drop(updated.Detached)
		return fmt.Errorf("updating box %q: %w", b.id, err)
	}
	b.note(change)
	b.volumes.drop(change.Detach)
	if len(files) == len(updated.Volumes) {
		b.volumes.add(updated.Volumes, files)
	} else {
		linux.CloseAll(files)
	}
	return nil
}

// note applies a change to the box's spec and limits.
func (b *box) note(change engine.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if change.Limits != nil {
		b.limits = b.limits.Apply(*change.Limits)
	}
	kept := slices.DeleteFunc(slices.Clone(b.spec.Mounts), func(m engine.Mount) bool {
		return slices.Contains(change.Detach, m.Target)
	})
	b.spec.Mounts = append(kept, change.Attach...)
}

// Usage implements engine.LiveBox. The launcher reads the figures, so that an idle box costs
// this process no descriptors, and this process needs neither privilege nor a cgroupfs.
func (b *box) Usage() (engine.Usage, error) {
	var u engine.Usage
	if _, err := b.engine.link.call(context.Background(), rpc.TypeUsage, rpc.Box{ID: b.id}, &u); err != nil {
		return engine.Usage{}, fmt.Errorf("measuring box %q: %w", b.id, err)
	}
	return u, nil
}

// Spec implements engine.LiveBox.
func (b *box) Spec() engine.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.spec
	s.Limits = b.limits
	s.Mounts = slices.Clone(s.Mounts)
	return s
}

// raiseMost notes limits that running commands may live under from now on.
func (b *box) raiseMost(l engine.Limits) {
	b.mu.Lock()
	defer b.mu.Unlock()
	raise := func(p *account) {
		p.most.Memory = higher(p.most.Memory, l.Memory)
		p.most.PIDs = higher(p.most.PIDs, l.PIDs)
	}
	for _, p := range b.processes {
		raise(&p.account)
	}
	for p := range b.launched {
		raise(p)
	}
}

func higher(a, b int64) int64 {
	if a == engine.Unlimited || b == engine.Unlimited {
		return engine.Unlimited
	}
	return max(a, b)
}

// peaks caps the kernel's figures at the limits. The kernel counts a request into the peak
// of a cgroup before a limit further up refuses it (pids_try_charge in
// kernel/cgroup/pids.c, page_counter_try_charge in mm/page_counter.c).
func (b *box) peaks(p *account, memory, pids *int64) (_, _ *int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if own := p.slot.memory; own > 0 {
		memory = atMost(memory, own)
	}
	return atMost(memory, p.most.Memory), atMost(pids, p.most.PIDs)
}

func atMost(figure *int64, limit int64) *int64 {
	if figure == nil || limit == engine.Unlimited || *figure <= limit {
		return figure
	}
	return &limit
}

// behindGVisor reports whether the commands of the box run on a kernel of its own.
func (b *box) behindGVisor() bool { return b.spec.Isolation == spec.IsolationGVisor }

func (b *box) currentLimits() engine.Limits {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limits
}

// Remove implements engine.Box. When ctx ends it returns, and the launcher finishes the
// removal. It works once: after an error only Service.Discard retries.
func (b *box) Remove(ctx context.Context) error {
	b.remove.Do(func() {
		b.markEnding()
		select {
		case <-b.done:
			b.lostToMemory() // its commands need to know, and afterwards nobody can tell
		default:
		}
		b.slots.readAll()
		err := b.engine.link.remove(ctx, b.id)
		if err != nil {
			b.err = fmt.Errorf("removing box %q: %w", b.id, err)
		}
		b.release()
	})
	return b.err
}

// markEnding notes that from now on a SIGKILL may be due to the removal of the box.
func (b *box) markEnding() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ending = true
}

func (b *box) isEnding() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ending
}

// abandon releases a box without removing it.
func (b *box) abandon() { b.remove.Do(b.release) }

// release closes what this process holds of the box, once all its commands have ended.
func (b *box) release() {
	b.agent.Close()
	<-b.done
	b.closeManaged()
	b.running.Wait()
	b.warm.close()
	b.slots.close()
	b.mu.Lock()
	linux.CloseAll(b.spare)
	b.spare = nil
	b.mu.Unlock()
	b.pidfd.Close()
	<-b.watched
	b.volumes.close()
	b.engine.forget(b)
}
