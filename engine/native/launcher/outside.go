package launcher

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine/native/outside"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/oneline"
)

// Some memory that commands make the kernel hold is charged to no cgroup, and no rule can
// refuse it: file locks, for one. The launcher measures it (package outside) and lowers the
// memory limit of the box by it, so that it counts against the limit after all and the
// ordinary OOM verdict ends the command. When the box lets go, the limit rises again.

const (
	// outsideEvery is how often the launcher looks at the memory of the host: one file.
	outsideEvery = 200 * time.Millisecond
	// outsideGrowth of the kernel's memory since the last look that found nothing makes it
	// look into the boxes, and so does outsideRound, because the growth of one thing can
	// be hidden by the end of another.
	outsideGrowth = 4 << 20
	outsideRound  = 10 * time.Second
	// outsideRest is how many times as long as a look took the launcher rests after it, if it
	// found nothing new. Else it rests for as long, because what it found can grow fast.
	outsideRest = 9
	// outsideLongest is how long a look and the rest after it may take. The next look begins
	// with the boxes that this one did not come to.
	outsideLongest = 2 * time.Second
	// outsideBox is how long the launcher counts the locks of one box: a box can spread
	// them so that it takes far longer. The next look goes on there.
	outsideBox = time.Second
	// outsideLeast is what a box may hold without notice: some 5,000 file locks.
	outsideLeast = 1 << 20
)

// heldOutside is what a box holds outside its charge.
type heldOutside struct {
	now    outside.Held // that the limit is lowered by
	last   outside.Held // the last that was not nothing
	at     time.Time    // of last
	killed map[string]struct{}
	busy   atomic.Bool // the limit is being set

	locks outside.LockCounter // the watcher's alone
}

// outsideWatch is the launcher's look at the host.
type outsideWatch struct {
	meminfo, slabinfo *os.File
	text              []byte    // room to read them
	base              int64     // of the kernel's memory; none at 0
	round             time.Time // of the last look into all boxes
	left              []*box    // that the last look did not come to, or not to the end of
	lowered           bool      // the limit of a box is
	changed           bool      // by the last look
}

// watchOutside runs until stop.
func (l *Launcher) watchOutside(stop <-chan struct{}) {
	var w outsideWatch
	var err, serr error
	w.meminfo, err = os.Open("/proc/meminfo")
	w.slabinfo, serr = os.Open("/proc/slabinfo")
	if err := errors.Join(err, serr); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: watching memory outside the charge of boxes: %v\n", oneline.Error(err))
	}
	defer w.meminfo.Close() // nil files are fine
	defer w.slabinfo.Close()
	timer := time.NewTimer(outsideEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-stop:
			return
		}
		began := time.Now()
		l.lookOutside(&w, began)
		rest := time.Since(began)
		if !w.changed {
			rest *= outsideRest
		}
		timer.Reset(max(outsideEvery, min(rest, outsideLongest)))
	}
}

// lookOutside looks at the host, and into the boxes if there is reason to.
func (l *Launcher) lookOutside(w *outsideWatch, now time.Time) {
	kernel := outside.KernelMemory(w.readAgain(w.meminfo))
	if w.base == 0 || kernel < w.base {
		w.base = kernel
	}
	all := kernel >= w.base+outsideGrowth || now.Sub(w.round) >= outsideRound
	if !all && !w.lowered && len(w.left) == 0 {
		return
	}
	if all {
		w.base, w.round = kernel, now
	}
	boxes := w.left
	for _, b := range l.boxesToLookInto(all) {
		if !slices.Contains(boxes, b) {
			boxes = append(boxes, b)
		}
	}
	w.left = nil
	var locks, size int64
	if len(boxes) > 0 {
		locks, size = outside.LockCache(w.readAgain(w.slabinfo))
		if locks >= 0 && locks*size < outsideLeast {
			size = 0 // no box can have that many
		}
	}
	w.lowered, w.changed = false, false
	var cut []*box
	for i, b := range boxes {
		if time.Since(now) >= outsideLongest {
			w.left = boxes[i:]
			break
		}
		if b.enter() {
			lowered, changed := b.lookOutside(size)
			w.lowered, w.changed = w.lowered || lowered, w.changed || changed
			if b.outside.locks.Cut {
				cut = append(cut, b)
			}
			b.leave()
		}
	}
	w.left = append(w.left, cut...)
}

// boxesToLookInto are those whose limit is lowered, or all in which a command may run: all
// commands run in slots of the launcher's.
func (l *Launcher) boxesToLookInto(all bool) (boxes []*box) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.boxes {
		b.mu.Lock()
		if b.outside.now != (outside.Held{}) || all && len(b.slots)+b.leaving > 0 {
			boxes = append(boxes, b)
		}
		b.mu.Unlock()
	}
	return boxes
}

// readAgain reads a file of /proc from its beginning, "" if it cannot be read.
func (w *outsideWatch) readAgain(f *os.File) string {
	if w.text == nil {
		w.text = make([]byte, 128<<10) // slabinfo is the longer one, some 25 KB
	}
	n, _ := f.ReadAt(w.text, 0) // of a nil file nothing
	return string(w.text[:max(n, 0)])
}

// lookOutside measures what the box holds, and sets its limit. lockSize is 0 if file locks need
// not be counted. It says whether the limit is lowered, and whether it changes.
func (b *box) lookOutside(lockSize int64) (lowered, changed bool) {
	limit := b.group.Limits().Memory
	if limit < 0 {
		return false, false
	}
	b.mu.Lock()
	old := b.outside.now
	b.mu.Unlock()
	held, of, err := b.holds(limit, lockSize, old.Locks)
	if err != nil { // the box ends, or the host is short of something: next time
		return old != outside.Held{}, false
	}
	if held.Total() < outsideLeast {
		held = outside.Held{}
	}
	lowered, changed = held != outside.Held{}, held != old
	// Also where nothing has changed: what still holds on is killed then.
	if (lowered || changed) && b.outside.busy.CompareAndSwap(false, true) {
		b.users.Add(1) // the caller is one of them
		go func() {    // the kernel may have to write pages back first
			defer b.leave()
			defer b.outside.busy.Store(false)
			b.debit(held, of)
		}()
	}
	return lowered, changed
}

// holds measures, and says which processes hold how much. More than what is left of the limit need
// not be known exactly. The locks are at least those of the last look, old, if time runs out.
func (b *box) holds(limit, lockSize, old int64) (held outside.Held, of map[int]int64, err error) {
	pids, err := b.group.PIDs()
	if err != nil || len(pids) == 0 {
		return held, nil, err
	}
	used, err := b.group.MemoryUse()
	if err != nil {
		return held, nil, err
	}
	enough := max(limit-used, 0) + outsideLeast
	sockets, err := outside.ReadSockets(b.pid, enough)
	if err != nil {
		return held, nil, err
	}
	if err := b.stillThere(); err != nil {
		return held, nil, err // the number may be another process's
	}
	charge, excess, err := b.group.Sockets()
	if err != nil {
		return held, nil, err
	}
	held.Sockets = sockets.Uncharged(charge) + excess
	if lockSize > 0 {
		locks, err := b.outside.locks.Count(pids, enough/lockSize+1, time.Now().Add(outsideBox))
		if err != nil {
			return held, nil, err
		}
		held.Locks, of = locks.Sum*lockSize, make(map[int]int64, len(locks.Of))
		for pid, n := range locks.Of {
			of[pid] = n * lockSize
		}
		if locks.Cut {
			held.Locks = max(held.Locks, old)
		}
	} else {
		b.outside.locks = outside.LockCounter{}
	}
	return held, of, nil
}

// debit lowers the limit of the box by what it holds, or lifts it again. of is what is known
// of its processes.
func (b *box) debit(held outside.Held, of map[int]int64) {
	b.mu.Lock()
	b.outside.now = held
	if held != (outside.Held{}) { // before anything is killed: the client asks after that
		b.outside.last, b.outside.at = held, time.Now()
	}
	b.mu.Unlock()
	err := b.group.Debit(held.Total())
	if _, ok := errors.AsType[*cgroups.InUseError](err); ok {
		// On cgroup2 the kernel has killed, on v1 it refuses.
		err = b.killLargest(held, of)
	}
	if err != nil && b.life.Err() == nil {
		fmt.Fprintf(os.Stderr, "boxd-init: box %q: lowering its memory limit: %v\n", b.id, oneline.Error(err))
	}
}

// killLargest kills the command whose processes hold most outside the charge, if that is
// more than half of the debit; else the one that is charged for most memory, as the kernel would.
func (b *box) killLargest(held outside.Held, of map[int]int64) error {
	s, err := b.group.LargestSlot(of, held.Total())
	if s == nil || err != nil {
		return err
	}
	b.mu.Lock()
	if b.slots[s.Name] != nil { // else its client no longer waits for it
		b.outside.killed[s.Name] = struct{}{}
	}
	b.mu.Unlock()
	b.watcher.Count(b.group, cgroups.MemoryLimit)
	return s.Kill()
}

// handleOutside tells why a command was killed.
func (l *Launcher) handleOutside(r *request) (any, []*os.File, error) {
	var m rpc.Outside
	b, err := l.find(r, &m, func() string { return m.ID })
	if err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var held rpc.OutsideHeld
	if time.Since(b.outside.at) <= m.Age {
		held.Locks, held.Sockets = b.outside.last.Locks, b.outside.last.Sockets
	}
	_, held.Killed = b.outside.killed[m.Slot]
	return held, nil, nil
}
