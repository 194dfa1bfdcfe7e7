package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/command"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"golang.org/x/sys/unix"
)

// A zygote of a box runs as one user, so there is one for each user that runs its commands.
const (
	// maxNests is how many there are in a box at most, with their spares no more than
	// wire.MaxWarm. Commands of further users are started.
	maxNests = wire.MaxWarm / (1 + spec.MaxSpares)
	// warmDelay is how long after the creation of its box a zygote is started, and idleDelay how much longer that waits at most
	// while a command runs: the first command
	// should not share the processors with it.
	warmDelay = 25 * time.Millisecond
	idleDelay = time.Second
	// loadDeadline bounds the start of a zygote with its imports, and spareDeadline the making of
	// a spare. The agent's own bounds are shorter.
	loadDeadline  = 3 * time.Minute
	spareDeadline = 2 * time.Minute
	// firstRest and lastRest bound how long a zygote that died or failed is left alone; the time
	// doubles with each failure, and begins anew after a zygote that has lived for goodLife.
	firstRest = 500 * time.Millisecond
	lastRest  = 5 * time.Minute
	goodLife  = 10 * time.Second
)

// errNoSpare means that no spare has taken a command over, and that no code of it has run.
var errNoSpare = errors.New("no spare")

// warmth keeps the zygotes of a box and their spares. Nothing in it delays a command: a command
// takes a spare that waits, or is started as if there were none. The work is done on a goroutine
// for each nest, which ends when there is nothing to do.
//
// Lock order: mu, box.mu.
type warmth struct {
	box  *box
	lost chan struct{}  // closed when the agent is gone
	wg   sync.WaitGroup // the goroutines

	mu      sync.Mutex
	closed  bool
	nests   map[nestKey]*nest
	members map[uint32]*member // by the ids that the agent knows them by
}

// nestKey is what a zygote is for.
type nestKey struct {
	zygote string
	user   engine.User
}

// nest is a zygote, or its place while there is none, with its spares. warmth.mu guards the fields.
type nest struct {
	of     spec.Zygote
	user   engine.User
	tended bool // a goroutine fills it
	zygote *member
	spares []*member // that wait
	began  time.Time // of the last zygote
	rest   time.Duration
	until  time.Time // no zygote is started before
}

// member is a zygote or a spare.
type member struct {
	id      uint32
	slot    *slot // owned, until a command takes it
	nest    *nest
	rlimits []wire.Rlimit    // that it was started with
	frames  chan *wire.Frame // what the agent says about it before it is of use
	gone    chan struct{}    // closed when it has ended
	// held, which warmth.mu guards: the goroutine that made it still works on it, and only that one discards it. It
	// may be sending the descriptors of slot, whose numbers must not become those of other files meanwhile.
	held bool
}

func newMember(id uint32, n *nest, s *slot, rlimits []wire.Rlimit) *member {
	return &member{id: id, slot: s, nest: n, rlimits: rlimits, frames: make(chan *wire.Frame, 4), gone: make(chan struct{})}
}

func newWarmth(b *box) *warmth {
	return &warmth{box: b, lost: make(chan struct{}), nests: map[nestKey]*nest{}, members: map[uint32]*member{}}
}

// possible reports whether commands of the box can be taken over by spares.
func (w *warmth) possible() bool {
	return len(w.box.spec.Zygotes) > 0 && w.box.spec.Engine == spec.EngineNative && !w.box.behindGVisor()
}

// carry takes on the zygotes and spares with which a box of the pool came, and their slots. Nothing else knows the
// box yet.
func (w *warmth) carry(warm []rpc.Warm, spares []*slot) {
	limits := command.Rlimits(w.box.limits)
	add := func(n *nest, id uint32, s *slot) *member {
		m := newMember(id, n, s, limits)
		w.members[id] = m
		w.box.slots.taken[s] = struct{}{}
		w.box.next = max(w.box.next, id)
		return m
	}
	for _, c := range warm {
		n := &nest{of: w.box.spec.Zygotes[c.Zygote], user: w.box.spec.User, began: time.Now()}
		w.nests[nestKey{n.of.Name, n.user}] = n
		n.zygote = add(n, c.ID, &slot{name: c.Slot})
		for _, id := range c.Spares {
			n.spares = append(n.spares, add(n, id, spares[0]))
			spares = spares[1:]
		}
	}
}

// start starts the zygotes of a new box, for its own user.
func (w *warmth) start() {
	if !w.possible() || w.box.spec.Once {
		return
	}
	latest := time.Now().Add(idleDelay)
	var tendAll func()
	tendAll = func() {
		if w.box.runs() && time.Now().Before(latest) {
			time.AfterFunc(warmDelay, tendAll)
			return
		}
		for i := range w.box.spec.Zygotes {
			w.tend(&w.box.spec.Zygotes[i], w.box.spec.User)
		}
	}
	time.AfterFunc(warmDelay, tendAll)
}

// tend works in the background towards a nest in which all spares wait. The nests of the
// box's own user come with the box, those of others with their first commands.
func (w *warmth) tend(z *spec.Zygote, user engine.User) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := nestKey{z.Name, user}
	n := w.nests[k]
	if n == nil && len(w.nests) < maxNests {
		n = &nest{of: *z, user: user}
		w.nests[k] = n
	}
	if n == nil || n.tended || w.closed || w.box.Paused() {
		return
	}
	// Moving processes into their cgroups may hold up others on the host that make or enter one, for a grace period
	// of the kernel. So several are moved at once.
	missing := n.of.Spares - len(n.spares)
	if n.zygote == nil && time.Now().Before(n.until) || n.zygote != nil && 2*missing < n.of.Spares {
		return
	}
	n.tended = true
	w.wg.Go(func() {
		done := w.box.beginWarming()
		before, _, _ := w.box.pauses.now()
		err := w.fill(n)
		done()
		w.mu.Lock()
		defer w.mu.Unlock()
		n.tended = false
		if err != nil {
			w.failedLocked(n, before, err)
		}
	})
}

// failedLocked has the nest rest after fill has failed with err, unless that is no fault of the zygote: the box is ending, or
// it was paused meanwhile, and before for the time before, so that zygote and spares could not answer.
func (w *warmth) failedLocked(n *nest, before time.Duration, err error) {
	sum, paused, _ := w.box.pauses.now()
	if paused || sum != before || w.isLost() || w.box.isEnding() {
		return
	}
	n.failedLocked()
	w.box.engine.log.Warn("commands are started without their warm interpreter", "box", w.box.id, "zygote", n.of.Name, "error", err)
}

// failedLocked has the nest rest.
func (n *nest) failedLocked() {
	if time.Since(n.began) > goodLife {
		n.rest = 0
	}
	n.rest = min(max(2*n.rest, firstRest), lastRest)
	n.until = time.Now().Add(n.rest)
}

// beginWarming notes that something else than commands runs in the box, until the returned
// function is called: no command of this time is alone.
func (b *box) beginWarming() (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.warming++
	for _, p := range b.processes {
		p.alone = false
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.warming--
	}
}

// fill starts the zygote of a nest if there is none, and makes the spares that are missing.
func (w *warmth) fill(n *nest) error {
	w.mu.Lock()
	zygote, missing := n.zygote, n.of.Spares-len(n.spares)
	w.mu.Unlock()
	if zygote == nil {
		var err error
		if zygote, err = w.load(n); err != nil || zygote == nil {
			return err
		}
	}
	if missing <= 0 {
		return nil
	}
	batch, err := w.box.slots.takeForSpares(missing)
	if err != nil {
		return err
	}
	asked, files := make([]*member, len(batch)), make([][]*os.File, len(batch))
	for i, s := range batch {
		files[i] = append(slices.Clone(s.birth[1:]), s.procs)
		asked[i] = w.add(n, s, zygote.rlimits)
	}
	for i, m := range asked {
		ask := wire.SpareMsg{Zygote: zygote.id, Tasks: uint32(len(files[i]) - 1)}
		if err == nil {
			err = w.box.agent.Send(wire.TypeSpare, m.id, ask.Marshal(), files[i]...)
		}
	}
	for _, m := range asked {
		if err == nil {
			_, err = w.await(m, wire.TypeWaiting, spareDeadline)
		}
		if err != nil {
			w.end(m)
			continue
		}
		w.ready(m, func() { n.spares = append(n.spares, m) })
	}
	if err != nil {
		w.end(zygote)
	}
	return err
}

// load starts the zygote of a nest and returns when it is ready. It returns nil if the box is paused.
func (w *warmth) load(n *nest) (*member, error) {
	w.box.slots.dropEnded()
	s, err := w.box.slots.take()
	if err != nil {
		return nil, err
	}
	msg := command.Zygote(n.of, n.user, w.box.spec, w.box.currentLimits())
	msg.Spawn.Tasks = uint32(len(s.birth) - 1)
	birth := s.birth
	m := w.add(n, s, msg.Spawn.Rlimits)
	w.mu.Lock()
	n.began = time.Now()
	w.mu.Unlock()
	err = w.begin(m, msg, birth)
	if errors.Is(err, engine.ErrPaused) {
		w.end(m)
		return nil, nil
	}
	if err == nil {
		var warm wire.WarmMsg
		var frame *wire.Frame
		if frame, err = w.await(m, wire.TypeWarm, loadDeadline); err == nil {
			err = warm.Unmarshal(frame.Body)
		}
		if err == nil && warm.Why != "" {
			err = errors.New(warm.Why)
		}
	}
	if err != nil {
		w.end(m)
		return nil, err
	}
	if !w.ready(m, func() { n.zygote = m }) {
		return nil, errEnded
	}
	return m, nil
}

// ready adds a member that works to its nest. It returns false if the member has ended, which it then discards.
func (w *warmth) ready(m *member, add func()) bool {
	w.mu.Lock()
	ok := w.members[m.id] == m
	if ok {
		m.slot.closeBirth()
		m.held = false
		add()
	}
	w.mu.Unlock()
	if !ok {
		w.end(m)
	}
	return ok
}

// begin has the agent start a zygote, and returns when its program runs. A pause waits for that.
func (w *warmth) begin(m *member, ask *wire.ZygoteMsg, birth []*os.File) error {
	if err := w.box.pauses.beginStart(); err != nil {
		return err
	}
	defer w.box.pauses.endStart()
	null := w.box.engine.null
	err := w.box.agent.Send(wire.TypeZygote, m.id, ask.Marshal(), append([]*os.File{null, null, null}, birth...)...)
	if err == nil {
		_, err = w.await(m, wire.TypeStarted, startDeadline)
	}
	return err
}

// add registers a member, which the caller holds until it calls ready or end. It takes ownership of s.
func (w *warmth) add(n *nest, s *slot, rlimits []wire.Rlimit) *member {
	m := newMember(w.box.newID(), n, s, rlimits)
	m.held = true
	w.mu.Lock()
	defer w.mu.Unlock()
	w.members[m.id] = m
	return m
}

// errEnded: a zygote or a spare has ended.
var errEnded = errors.New("it has ended")

// await returns the agent's frame of type typ about m.
func (w *warmth) await(m *member, typ byte, within time.Duration) (*wire.Frame, error) {
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		select {
		case frame := <-m.frames:
			if frame.Type == typ {
				return frame, nil
			}
			if frame.Type == wire.TypeFailed {
				failed := new(wire.FailedMsg)
				return nil, errors.Join(failed.Unmarshal(frame.Body), failed)
			}
		case <-m.gone:
			return nil, errEnded
		case <-w.lost:
			return nil, engine.ErrBoxLost
		case <-late.C:
			return nil, fmt.Errorf("no answer in %v", within)
		}
	}
}

// event handles a frame from the agent that is about no command. It runs on the box's reader.
func (w *warmth) event(frame *wire.Frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.members[frame.ID]
	if m == nil {
		return
	}
	switch frame.Type {
	case wire.TypeStarted, wire.TypeFailed, wire.TypeWarm, wire.TypeWaiting:
		select {
		case m.frames <- frame:
		default: // an agent that says something twice
		}
		return
	case wire.TypeExited:
	default:
		return
	}
	if m.nest.zygote == m && !w.box.Paused() { // in a pause the agent kills one that does not answer
		m.nest.failedLocked()
	}
	w.forgetLocked(m)
	if !m.held {
		w.wg.Go(func() { w.discard(m) })
	}
}

// forgetLocked removes m from the nest. It returns false if that was done before.
func (w *warmth) forgetLocked(m *member) bool {
	if w.members[m.id] != m {
		return false
	}
	delete(w.members, m.id)
	close(m.gone)
	n := m.nest
	if n.zygote == m {
		n.zygote = nil
	}
	n.spares = slices.DeleteFunc(n.spares, func(s *member) bool { return s == m })
	return true
}

// end ends a member that the caller holds, or that nobody does.
func (w *warmth) end(m *member) {
	w.mu.Lock()
	first := w.forgetLocked(m) || m.held
	m.held = false
	w.mu.Unlock()
	if first {
		w.discard(m)
	}
}

// discard kills what is left in the slot of m, such as children of a zygote that are no spares yet,
// and gives the slot back.
func (w *warmth) discard(m *member) {
	if !w.isLost() {
		ctx, cancel := context.WithTimeout(context.Background(), emptyDeadline)
		defer cancel()
		_ = w.box.slots.kill(ctx, m.slot, int(unix.SIGKILL)) // of a slot that is released, the rest ends with the box
	}
	w.box.slots.release(m.slot)
}

func (w *warmth) isLost() bool {
	select {
	case <-w.lost:
		return true
	default:
		return false
	}
}

// mayTake reports whether p is for a spare of z at all, and notes that.
func (w *warmth) mayTake(z *spec.Zygote, p *process) bool {
	if z == nil || p.cmd.TTY != nil || p.cmd.Builtin != "" || !w.possible() {
		return false
	}
	p.zygote = z
	return true
}

// take gives p, for which mayTake is true, the slot and id of a spare, from whose end on the agent speaks about p.
// It returns false if there is none.
func (w *warmth) take(z *spec.Zygote, p *process) bool {
	limits := command.Rlimits(w.box.currentLimits())
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nests[nestKey{z.Name, *p.cmd.User}]
	if n == nil {
		return false
	}
	if n.zygote != nil && !slices.Equal(n.zygote.rlimits, limits) {
		w.clearLocked(n)
	}
	for len(n.spares) > 0 {
		m := n.spares[0]
		n.spares = n.spares[1:]
		delete(w.members, m.id)
		if !slices.Equal(m.rlimits, limits) { // its zygote has ended before the change
			w.wg.Go(func() { w.discard(m) })
			continue
		}
		p.slot = m.slot
		w.box.renumber(p, m.id)
		if w.box.spec.Once {
			w.clearLocked(n)
		}
		return true
	}
	return false
}

// clearLocked ends the zygote and the spares of a nest.
func (w *warmth) clearLocked(n *nest) {
	for _, m := range append(slices.Clone(n.spares), n.zygote) {
		if m != nil && w.forgetLocked(m) {
			w.wg.Go(func() { w.discard(m) })
		}
	}
}

// used is called when p was started, and again when it has ended. It makes a spare in place of the
// one that p took: while p runs only if there is no other. A zygote is not started beside p.
func (w *warmth) used(p *process, ended bool) {
	if p.zygote == nil || w.box.spec.Once {
		return
	}
	w.mu.Lock()
	n := w.nests[nestKey{p.zygote.Name, *p.cmd.User}]
	empty := n != nil && n.zygote != nil && len(n.spares) == 0
	w.mu.Unlock()
	if ended || empty {
		w.tend(p.zygote, *p.cmd.User)
	}
}

// spoiled is called when a spare did not take p over. Unless it was dead, or p is not for a spare, the
// others may be no better: a process of the same user may have stopped them.
func (w *warmth) spoiled(p *process, failed *wire.FailedMsg) {
	if failed.Errno == unix.ESRCH || failed.Errno == unix.ENOEXEC {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.nests[nestKey{p.zygote.Name, *p.cmd.User}]; n != nil {
		n.failedLocked()
		w.clearLocked(n)
	}
}

// lose notes that the agent is gone.
func (w *warmth) lose() { close(w.lost) }

// close waits for the goroutines and closes what is left. It is called after lose, when the box has no
// commands.
func (w *warmth) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		m.slot.close() // the launcher removes its cgroups with the box
	}
}
