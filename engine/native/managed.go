package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"slices"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// Launch implements engine.LiveBox. It ignores ctx once it has asked the agent, which starts
// the process within microseconds.
func (b *box) Launch(ctx context.Context, m engine.Managed) (engine.ManagedProcess, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if err := b.pauses.beginStart(); err != nil {
		return nil, fmt.Errorf("starting process %q: %w", m.Key, err)
	}
	defer b.pauses.endStart()
	link, err := b.managedConnection(ctx)
	if err != nil {
		return nil, fmt.Errorf("starting process %q: %w", m.Key, err)
	}
	p := newManaged(b, m.Key)
	if err := p.launch(ctx, link, m); err != nil {
		return nil, err
	}
	return p, nil
}

// launch starts the process. When it returns, the process runs.
func (p *managed) launch(ctx context.Context, link *managedLink, m engine.Managed) error {
	b := p.box
	if link.has(m.Key) { // the agent would refuse it, but the key's second slot would be marked by then
		return keyTaken(m.Key)
	}
	cmd := m.Command().WithDefaults(b.spec)
	pty, err := b.openPTY(ctx, &cmd)
	if err != nil {
		return err
	}
	defer linux.CloseAll(pty)
	b.slots.dropEnded()
	if p.slot, err = b.slots.take(); err != nil {
		return err
	}
	if err := b.slots.keep(p.slot, p.key, m.Memory); err != nil {
		b.slots.release(p.slot)
		return fmt.Errorf("starting process %q: %w", p.key, err)
	}
	b.account(&p.account)
	p.wanted = &wire.LaunchMsg{Key: p.key, Ring: ringSize(cmp.Or(m.History, engine.DefaultHistory)), DropOldest: m.DropOldest, DropStderr: m.DropStderr, Spawn: *p.spawnMsg(&cmd, p.slot.birth)}
	if m.StderrHistory != 0 {
		p.wanted.StderrRing = ringSize(m.StderrHistory)
	}
	p.levels = levels(b.volumes)
	p.slot.begin()
	p.slot.renewNever()
	p.began = time.Now()
	close(p.known)
	files := slices.Concat(p.slot.birth, pty)
	ask := &question{typ: wire.TypeLaunch, launch: p}
	err = link.ask(ask, p.wanted.Marshal(), files...)
	if ask.sent && errors.Is(err, engine.ErrBoxLost) {
		err = fmt.Errorf("%w: %w", err, engine.ErrMayHaveRun)
	}
	if err != nil {
		b.unaccount(&p.account)
		return errors.Join(p.launchError(&cmd, err), p.giveUp(ctx, err))
	}
	b.slots.refill()
	return nil
}

// giveUp kills the process that a launch which failed with err may have started, and releases
// its slot. It waits until the slot has no mark: the key may be used again, and an adoption finds
// the slot of a process by the key.
func (p *managed) giveUp(ctx context.Context, err error) error {
	if errors.Is(err, engine.ErrBoxLost) || errors.Is(err, os.ErrClosed) {
		p.slot.close()
		return nil
	}
	if errors.Is(err, errTruncated) {
		err = p.box.slots.kill(context.Background(), p.slot, int(unix.SIGKILL))
	} else {
		err = nil
	}
	return errors.Join(err, p.box.slots.releaseNow(ctx, p.slot))
}

// launchError translates the agent's answer into an error that callers can distinguish.
func (p *managed) launchError(cmd *engine.Command, err error) error {
	failed, ok := errors.AsType[*wire.FailedMsg](err)
	switch {
	case !ok:
		return fmt.Errorf("starting process %q: %w", p.key, err)
	case failed.Step == wire.StepKey:
		return keyTaken(p.key)
	case failed.Step == wire.StepTable:
		return fmt.Errorf("starting process %q: the box has %d managed processes: forget some first", p.key, wire.MaxManaged)
	case failed.Step == wire.StepRing && failed.Errno == unix.ENOSPC:
		return fmt.Errorf("starting process %q: the histories of all processes of a box take at most %s: choose a smaller one, or forget processes first",
			p.key, spec.FormatSize(wire.MaxRings))
	}
	return p.box.startError(cmd, failed)
}

func keyTaken(key string) error {
	return &engine.FieldError{Field: "key", Value: spec.Quote(key), Rule: "must be new in the box: there is or was a process of that name"}
}

// ringSize is the size of a ring for a history.
func ringSize(history int64) uint64 {
	return max(wire.MinRing, uint64(1)<<bits.Len64(uint64(history)-1))
}

// openPTY has the launcher open master and slave of a terminal, if cmd wants one.
func (b *box) openPTY(ctx context.Context, cmd *engine.Command) ([]*os.File, error) {
	if cmd.TTY == nil {
		return nil, nil
	}
	ask := rpc.PTY{ID: b.id, User: *cmd.User, Size: *cmd.TTY}
	files, err := b.engine.link.call(ctx, rpc.TypePTY, ask, nil)
	if err != nil {
		return nil, fmt.Errorf("opening terminal: %w", err)
	}
	if len(files) != 2 {
		linux.CloseAll(files)
		return nil, fmt.Errorf("opening terminal: %d descriptors: %w", len(files), wire.ErrProtocol)
	}
	return files, nil
}

// account registers a managed process with the box: commands that run meanwhile are not
// alone.
func (b *box) account(a *account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.processes {
		p.alone = false
	}
	if b.launched == nil {
		b.launched = map[*account]struct{}{}
	}
	b.launched[a] = struct{}{}
	a.most = b.limits
}

func (b *box) unaccount(a *account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.launched, a)
}

// Managed implements engine.LiveBox. The processes are in the order of their starts.
func (b *box) Managed() []engine.ManagedProcess {
	b.mu.Lock()
	link := b.managed
	b.mu.Unlock()
	if link == nil {
		return nil
	}
	var list []engine.ManagedProcess
	for _, p := range link.all() {
		list = append(list, p)
	}
	return list
}

// has reports whether there is a process of that key, running or ended.
func (l *managedLink) has(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.processes {
		if p.key == key {
			return true
		}
	}
	return false
}

// all lists the processes in the order of their starts.
func (l *managedLink) all() []*managed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.processes), func(p, q *managed) int { return cmp.Compare(p.number, q.number) })
}

// managedConnection returns the connection for managed processes, which is made
// when the first one is launched.
func (b *box) managedConnection(ctx context.Context) (*managedLink, error) {
	b.opening.Lock()
	defer b.opening.Unlock()
	b.mu.Lock()
	link, lost := b.managed, b.lost
	b.mu.Unlock()
	switch {
	case lost:
		return nil, fmt.Errorf("box %q: %w", b.id, engine.ErrBoxLost)
	case link != nil:
		return link, nil
	}
	files, err := b.engine.link.call(ctx, rpc.TypeConnect, rpc.Connect{ID: b.id}, nil)
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		linux.CloseAll(files)
		return nil, fmt.Errorf("connecting to agent: %d descriptors: %w", len(files), wire.ErrProtocol)
	}
	conn, err := wire.FileConn(files[0])
	if err != nil {
		return nil, err
	}
	link = newManagedLink(b, conn)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.managed = link
	return link, nil
}

// openManaged takes over the managed processes that an earlier client of the box left. The
// marks of their slots show whether there are any.
func (b *box) openManaged(ctx context.Context) error {
	if len(b.managedSlots) == 0 {
		return nil
	}
	link, err := b.managedConnection(ctx)
	if err != nil {
		return err
	}
	return b.takeOver(ctx, link)
}

// takeOver adopts the processes that the agent lists.
func (b *box) takeOver(ctx context.Context, link *managedLink) error {
	list := &question{typ: wire.TypeList}
	if err := link.ask(list, nil); err != nil {
		return fmt.Errorf("listing managed processes: %w", err)
	}
	slots := map[string]string{}
	for name, key := range b.managedSlots {
		slots[key] = name
	}
	for _, p := range list.listed {
		name, ok := slots[p.key]
		if !ok {
			p.disown()
			continue
		}
		if err := p.adopt(name); err != nil {
			return fmt.Errorf("adopting process %q: %w", p.key, err)
		}
		delete(slots, p.key)
	}
	for _, name := range slots { // of failed launches, and of forgotten processes
		s := &slot{name: name}
		if err := b.slots.kill(ctx, s, int(unix.SIGKILL)); err != nil {
			return err
		}
		b.slots.release(s)
	}
	return nil
}

// adopt completes a process that an earlier client launched.
func (p *managed) adopt(slot string) (err error) {
	if p.slot, err = p.box.slots.open(slot); err != nil {
		return err
	}
	p.slot.begin()
	p.began = p.attached.Add(-p.age)
	p.levels = levels(p.box.volumes)
	p.box.account(&p.account)
	p.fileSize = p.box.currentLimits().FileSize
	close(p.known)
	return nil
}

// disown ends a process that no client knows: its client was gone when it was launched, and
// an adoption has released its slot since. If it has not ended yet, the next adoption
// forgets it.
func (p *managed) disown() {
	p.slot = new(slot) // an empty slot has nothing to read or close
	p.slot.begin()
	close(p.known)
	kill := wire.SignalMsg{Signal: uint32(unix.SIGKILL)}
	p.link.tell(wire.TypeManagedSignal, p.number, kill.Marshal())
	m := wire.ForgetMsg{Number: p.number}
	_ = p.link.ask(&question{typ: wire.TypeForget}, m.Marshal()) // refused while it runs
	for _, o := range p.outputs {
		o.close()
	}
	p.link.mu.Lock()
	defer p.link.mu.Unlock()
	delete(p.link.processes, p.number)
}

// closeManaged releases the managed processes of a box that is gone or that this process
// releases.
func (b *box) closeManaged() {
	b.opening.Lock()
	defer b.opening.Unlock()
	b.mu.Lock()
	link := b.managed
	b.mu.Unlock()
	if link == nil {
		return
	}
	link.conn.Close()
	<-link.done
	for _, p := range link.all() {
		select {
		case <-p.known:
		default: // its adoption failed
			p.slot = new(slot)
			p.slot.begin()
			close(p.known)
		}
	}
	link.wg.Wait()
	for _, p := range link.all() {
		p.mu.Lock()
		if !p.forgotten {
			p.forgetLocked()
		}
		p.mu.Unlock()
	}
}
