package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Add watches a box until Remove. It includes slots that the Group creates later, if
// necessary.
func (w *Watcher) Add(g *Group) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return os.ErrClosed
	}
	w.boxes[g] = &boxCounts{total: map[Limit]int64{}}
	g.watcher.Store(w)
	if err := errors.Join(w.addMemoryLocked(g), w.addPIDsLocked(g)); err != nil {
		w.removeLocked(g)
		return fmt.Errorf("watching the limits of box %q: %w", g.ID, err)
	}
	return nil
}

func (w *Watcher) addMemoryLocked(g *Group) error {
	if t := g.v1Tree("memory"); t != nil {
		return errors.Join(w.addEventfdLocked(g, t, ""), w.addLimitedLocked(g, t))
	}
	if !g.v2.on.has("memory") || !exists(g.v2.box, "work/memory.events") {
		return nil
	}
	events, err := linux.ReadFileAt(g.v2.box, "work/memory.events")
	if err != nil {
		return err
	}
	key := "oom_group_kill" // kills, not processes: see SlotStats.oomKills
	if n, err := findNumber(events, key); err != nil || n == nil {
		key = "oom_kill" // before Linux 5.17
	}
	return w.addFileLocked(&watched{group: g, limit: MemoryLimit, dir: g.v2.box, name: "work/memory.events", key: key})
}

func (w *Watcher) addPIDsLocked(g *Group) error {
	for _, t := range g.trees() {
		if t.on.has("pids") && exists(t.box, "work/pids.events") {
			return w.addFileLocked(&watched{group: g, limit: PIDsLimit, dir: t.box, name: "work/pids.events", key: "max"})
		}
	}
	return nil
}

// addSlot watches a new slot, or does nothing if the file of the box is sufficient.
func (w *Watcher) addSlot(g *Group, slot string) {
	t := g.slotPIDs()
	if t == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.boxes[g] == nil {
		return
	}
	// If it fails, only the refused forks of this slot go unreported.
	_ = w.addFileLocked(&watched{group: g, limit: PIDsLimit, slot: slot, dir: t.box, name: "work/" + slot + "/pids.events", key: "max"})
}

// addLimitedLocked watches the slots that have their own memory limit.
func (w *Watcher) addLimitedLocked(g *Group, t *tree) error {
	slots, err := g.Slots()
	if err != nil {
		return err
	}
	for _, slot := range slots {
		if limit, err := g.slotMemoryLimit(slot); err == nil && limit >= 0 {
			// The slot may be gone. If it fails, only the events of this slot go unreported.
			_ = w.addEventfdLocked(g, t, slot)
		}
	}
	return nil
}

// addSlotMemory watches a slot that has just got its own memory limit. On cgroup2 the file
// of the box is sufficient.
func (w *Watcher) addSlotMemory(g *Group, slot string) {
	t := g.v1Tree("memory")
	if t == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.boxes[g]
	if w.closed || b == nil || slices.ContainsFunc(b.sources, func(s *watched) bool { return s.slot == slot && s.event != nil }) {
		return
	}
	_ = w.addEventfdLocked(g, t, slot)
}

// slotPIDs returns the tree on which the kernel counts refused forks in slots, or nil.
func (g *Group) slotPIDs() *tree {
	if t := g.treeOf("pids"); t != nil && t.box != nil && !g.pidsCountedAtLimit(t, "work") {
		return t
	}
	return nil
}

// removeSlot is called before a slot is removed, for a last read of its counters, and again
// with gone after that, because inotify would keep the inode of its file.
func (w *Watcher) removeSlot(g *Group, slot string, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.boxes[g]
	if b == nil {
		return
	}
	b.sources = slices.DeleteFunc(b.sources, func(s *watched) bool {
		if s.slot != slot {
			return false
		}
		if !gone {
			w.readLocked(s)
		}
		// Drop an eventfd before the removal, of which it would be notified like of anything
		// else.
		drop := gone || s.event != nil
		if drop {
			w.dropLocked(s)
		}
		return drop
	})
}

// Remove ends the watch of a box. Call it before Group.Remove and Group.Close. On a nil
// Watcher it does nothing.
func (w *Watcher) Remove(g *Group) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(g)
}

func (w *Watcher) removeLocked(g *Group) {
	g.watcher.Store(nil)
	if b := w.boxes[g]; b != nil {
		for _, s := range b.sources {
			w.dropLocked(s)
		}
		delete(w.boxes, g)
	}
}

func (w *Watcher) dropLocked(s *watched) {
	if s.event != nil {
		delete(w.memory, s.id)
		s.event.Close()
		return
	}
	if w.silent[s] {
		delete(w.silent, s)
		return
	}
	delete(w.files, s.id)
	_, _ = unix.InotifyRmWatch(int(w.inotify.Fd()), uint32(s.id)) // fails if the file is gone
}

// addFileLocked watches a file with a counter.
func (w *Watcher) addFileLocked(s *watched) error {
	b := w.boxes[s.group]
	if s.limit == PIDsLimit && s.group.v1Tree("pids") != nil {
		if s.slot == "" {
			return nil // it would only count forks that PID 1 itself was refused
		}
		b.sources, w.silent[s] = append(b.sources, s), true
		s.seen = s.count()
		if len(w.silent) == 1 {
			w.awake()
		}
		return nil
	}
	id, err := unix.InotifyAddWatch(int(w.inotify.Fd()), linux.FdPath(s.dir)+"/"+s.name, unix.IN_MODIFY)
	if err != nil {
		return &os.PathError{Op: "inotify_add_watch", Path: s.dir.Name() + "/" + s.name, Err: err}
	}
	s.id = int32(id)
	w.files[s.id] = s
	b.sources = append(b.sources, s)
	s.seen = s.count()
	return nil
}

// addEventfdLocked makes v1 notify an eventfd when a slot or, for "", work is out of memory.
func (w *Watcher) addEventfdLocked(g *Group, t *tree, slot string) error {
	dir := path.Join("work", slot)
	event, err := newEventfd()
	if err != nil {
		return err
	}
	control, err := linux.OpenAt(t.box, dir+"/memory.oom_control", unix.O_RDONLY)
	if err == nil {
		err = linux.WriteFileAt(t.box, dir+"/cgroup.event_control", fmt.Sprintf("%d %d", event.Fd(), control.Fd()))
		control.Close()
	}
	if err == nil {
		err = w.poll(int(event.Fd()))
	}
	if err != nil {
		event.Close()
		return err
	}
	s := &watched{group: g, slot: slot, limit: MemoryLimit, event: event, id: int32(event.Fd())}
	b := w.boxes[g]
	switch {
	case slot == "":
		b.memory = s
	case b.memory != nil:
		s.boxes = b.memory.seen
	}
	w.memory[s.id] = s
	b.sources = append(b.sources, s)
	return nil
}

// count reads the counter in a file. If the file is gone, it returns the last count.
func (s *watched) count() int64 {
	text, err := linux.ReadFileAt(s.dir, s.name)
	if err != nil {
		return s.seen
	}
	if n, err := findNumber(text, s.key); err == nil && n != nil {
		return *n
	}
	return s.seen
}
