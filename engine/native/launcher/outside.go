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
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
)

// Commands can make the kernel hold memory that it charges to no cgroup and that no rule can
// refuse, such as file locks. The launcher measures this memory (package outside) and lowers
// the memory limit of the box by the same amount. So the memory counts against the limit after
// all, and the ordinary OOM verdict ends the command. When the box frees it, the limit rises
// again.

const (
	// outsideEvery is how often the launcher reads how much memory the kernel uses: one file.
	outsideEvery = 200 * time.Millisecond
	// The launcher inspects the boxes when the kernel's memory has grown by outsideGrowth
	// since the last inspection. It also does so every outsideRound, because one thing can
	// shrink while another grows.
	outsideGrowth = 4 << 20
	outsideRound  = 10 * time.Second
	// outsideRest is how many times the duration of an inspection the launcher rests after
	// it if nothing has changed. Otherwise it rests only as long as the inspection took,
	// because what has changed can grow fast.
	outsideRest = 9
	// outsideLongest bounds an inspection, and the rest after it. The next inspection begins
	// with the boxes that this one did not reach.
	outsideLongest = 2 * time.Second
	// outsideBox bounds how long the launcher counts the locks of one box, which can spread
	// them so that counting takes far longer. The next inspection continues there.
	outsideBox = time.Second
	// outsideLeast is what a box may hold without being noticed: some 5,000 file locks.
	outsideLeast = 1 << 20
)

// heldOutside records what a box holds outside its charge.
type heldOutside struct {
	now    outside.Held             // the amount by which the limit is lowered
	last   outside.Held             // the last amount above 0
	at     time.Time                // when last was measured
	killed map[string]time.Duration // when the command of a slot was killed, see [linux.Monotonic]
	busy   atomic.Bool              // the limit is being set

	locks outside.LockCounter // used by watchOutside only
}

// outsideWatch is the state of watchOutside.
type outsideWatch struct {
	meminfo, slabinfo *os.File
	text              []byte    // a buffer to read them
	base              int64     // the least that the kernel has used since the last inspection of all boxes
	round             time.Time // of the last inspection of all boxes
	left              []*box    // boxes that the last inspection did not reach or not finish
	lowered           bool      // the limit of some box is lowered
	changed           bool      // the last inspection changed a limit
}

// watchOutside inspects the boxes until stop is closed.
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

// lookOutside reads how much memory the kernel uses, and inspects the boxes if there is
// reason to.
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
	inspect := func(b *box) bool { return b.outside.now != (outside.Held{}) || all && b.runsLocked() }
	for _, b := range l.boxesWhere(inspect) {
		if !slices.Contains(boxes, b) {
			boxes = append(boxes, b)
		}
	}
	w.left = nil
	var locks, size int64
	if len(boxes) > 0 {
		locks, size = outside.LockCache(w.readAgain(w.slabinfo))
		if locks >= 0 && locks*size < outsideLeast {
			size = 0 // too few on the whole host to matter
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

// readAgain reads a file of /proc from its beginning. It returns "" if it cannot.
func (w *outsideWatch) readAgain(f *os.File) string {
	if w.text == nil {
		w.text = make([]byte, 128<<10) // slabinfo is the longer one, some 25 KB
	}
	n, _ := f.ReadAt(w.text, 0) // reading a nil file is an error
	return string(w.text[:max(n, 0)])
}

// lookOutside measures what the box holds, and sets its limit. lockSize is the size of a file
// lock in bytes, 0 if locks need not be counted. It reports whether the limit is lowered, and
// whether it changes.
func (b *box) lookOutside(lockSize int64) (lowered, changed bool) {
	limit := b.group.Limits().Memory
	if limit < 0 {
		return false, false
	}
	b.mu.Lock()
	old := b.outside.now
	b.mu.Unlock()
	held, of, err := b.holds(limit, lockSize, old.Locks)
	if err != nil { // the box is ending, or the host lacks some resource: retried next time
		return old != outside.Held{}, false
	}
	if held.Total() < outsideLeast {
		held = outside.Held{}
	}
	lowered, changed = held != outside.Held{}, held != old
	// Also without a change: setting the limit kills commands that still hold the memory.
	if (lowered || changed) && b.outside.busy.CompareAndSwap(false, true) {
		b.users.Add(1) // the caller is a user, so there is no race with destroy
		go func() {    // slow if the kernel has to write pages back first
			defer b.leave()
			defer b.outside.busy.Store(false)
			b.debit(held, of)
		}()
	}
	return lowered, changed
}

// holds measures what the box holds, and how much each process does. Amounts above the rest
// of the limit need not be exact. If time runs out, the locks count at least as much as in the
// last inspection, old.
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
		return held, nil, err // another process may have got the number
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

// debit lowers the limit of the box by held, or raises it again. of is how many bytes each
// process holds, as far as known.
func (b *box) debit(held outside.Held, of map[int]int64) {
	b.mu.Lock()
	b.outside.now = held
	if held != (outside.Held{}) { // recorded before anything is killed, after which the client asks
		b.outside.last, b.outside.at = held, time.Now()
	}
	b.mu.Unlock()
	err := b.group.Debit(held.Total())
	if _, ok := errors.AsType[*cgroups.InUseError](err); ok {
		// On cgroup2 the kernel has killed something; on v1 it refuses the limit.
		err = b.killLargest(held, of)
	}
	if err != nil && b.life.Err() == nil {
		fmt.Fprintf(os.Stderr, "boxd-init: box %q: lowering its memory limit: %v\n", b.id, oneline.Error(err))
	}
}

// killLargest kills the command whose processes hold most memory outside the charge, if that
// is more than half of the debit. Otherwise it kills the command with the largest charge, as
// the kernel would.
func (b *box) killLargest(held outside.Held, of map[int]int64) error {
	s, pids, err := b.group.LargestSlot(of, held.Total())
	if s == nil || err != nil {
		return err
	}
	b.mu.Lock()
	earlier, found := b.outside.killed[s.Name]
	if b.slots[s.Name] != nil { // otherwise its client no longer waits for it
		b.outside.killed[s.Name] = linux.Monotonic()
	}
	b.mu.Unlock()
	killed, err := s.KillCommand(pids)
	if killed {
		b.watcher.Count(b.group, cgroups.MemoryLimit)
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.outside.killed, s.Name)
	if found && b.slots[s.Name] != nil { // its processes take long to end
		b.outside.killed[s.Name] = earlier
	}
	return err
}

// handleOutside tells the client whether a command was killed for memory outside the charge.
func (b *box) handleOutside(m rpc.Outside) (any, []*os.File, error) {
	var held rpc.OutsideHeld
	if isGVisor(b.spec) {
		var err error
		if held.OOM, err = b.outOfMemory(); err != nil {
			return nil, nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.outside.at) <= m.Age {
		held.Locks, held.Sockets = b.outside.last.Locks, b.outside.last.Sockets
	}
	at, killed := b.outside.killed[m.Slot]
	held.Killed = killed && at >= m.Began
	if _, killed := b.outside.killed[b.sandbox]; killed {
		held.OOM = true
	}
	return held, nil, nil
}
