package launcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/leftover"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/mounts"
	"golang.org/x/sys/unix"
)

// adoptAll adopts the boxes of the previous launcher that are provably its boxes, and removes
// the remains of all others.
func (l *Launcher) adoptAll() error {
	entries, err := os.ReadDir(l.instance.boxes())
	if err != nil {
		return fmt.Errorf("finding boxes: %w", err)
	}
	boot, err := linux.BootID()
	if err != nil {
		return fmt.Errorf("finding boxes: %w", err)
	}
	before := leftover.Read(l.instance.state, filepath.Base(l.instance.dir))
	stuck := map[string]error{} // whose next removal is not due yet
	var left []os.DirEntry
	var failed error
	var mu sync.Mutex
	var wg sync.WaitGroup
	turn := make(chan struct{}, 2*runtime.NumCPU())
	for _, e := range entries {
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			b, err := l.adopt(e.Name(), boot)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				l.boxes[b.id] = b
				l.noteBorn(b.name, b.id)
			case isShortage(err):
				failed = fmt.Errorf("taking over box %q: %w", e.Name(), err)
			case before != nil && !before.Due() && before.Reasons[e.Name()] != "":
				stuck[e.Name()] = errors.New(before.Reasons[e.Name()])
			case isBlank(l.instance.dir, e.Name()):
				left = append(left, e) // nobody has used it, and nobody knows of it
			default:
				fmt.Fprintf(os.Stderr, "boxd-init: box %q cannot be taken over and is removed: %v\n", e.Name(), oneline.Error(err))
				left = append(left, e)
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	return l.sweepLeft(left, stuck)
}

// isShortage reports whether err is a lack of resources of this process or host. It says
// nothing about the box and is no reason to end it: a launcher that is restarted later may
// succeed.
func isShortage(err error) bool {
	for _, shortage := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, shortage) {
			return true
		}
	}
	return false
}

// sweepLeft removes the boxes in left, and the leases that belong to no box. It does not try
// to remove those in stuck.
func (l *Launcher) sweepLeft(left []os.DirEntry, stuck map[string]error) error {
	ctx, cancel := context.WithTimeout(context.Background(), sweepTime)
	defer cancel()
	keep := sweepBoxes(ctx, l.instance.dir, left, l.cgroups)
	// The next launcher finds what cannot be removed; it does not harm other boxes.
	if line := leftover.Line(keep); line != "" {
		fmt.Fprintln(os.Stderr, line)
	}
	if len(keep) > 0 || len(stuck) == 0 {
		all := maps.Clone(keep)
		maps.Copy(all, stuck)
		if err := leftover.Note(l.instance.state, filepath.Base(l.instance.dir), all); err != nil {
			return fmt.Errorf("recording leftovers: %w", err)
		}
	}
	maps.Copy(keep, stuck)
	for id := range keep {
		name := bornName(l.instance.dir, id)
		l.noteUnremoved(id, name)
		l.noteBorn(name, id)
	}
	for id := range l.boxes {
		keep[id] = errAdopted
	}
	return sweepLeases(filepath.Join(l.instance.state, "ids"), l.instance.dir, keep)
}

var errAdopted = errors.New("adopted")

// adopt adopts the box called id.
func (l *Launcher) adopt(id, boot string) (_ *box, err error) {
	b := &box{id: id, dir: filepath.Join(l.instance.boxes(), id), service: true}
	r, err := readRecord(b.dir, id)
	if err != nil {
		return nil, err
	}
	if r.BootID != boot {
		return nil, errors.New("it is from before the last boot")
	}
	if slices.ContainsFunc(r.Spec.Mounts, func(m engine.Mount) bool { return m.Layer != "" && !spec.IsLayerID(m.Layer) }) {
		return nil, errors.New("it writes a layer, which ended with the last launcher")
	}
	b.init()
	b.name = bornName(l.instance.dir, id)
	b.spec, b.record, b.pid, b.sandbox = r.Spec, r, r.PID, r.Sandbox
	if b.runtime = l.runtimes[kindOf(b.spec)]; b.runtime == nil {
		// It lives on without the program that made it. What that program keeps of it stays until a
		// launcher has it again.
		b.runtime = native{&l.programs}
	}
	b.stale = true // the previous launcher may not have shown the last limits
	b.private = filepath.Join(l.instance.private(), id)
	if b.lease, err = l.findLease(b.name, r); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.storage.dropAll(id)
			l.layers.dropAll(id)
			b.pidfd.Close() // nil files are fine
			if b.group != nil {
				b.watcher.Remove(b.group)
				err = errors.Join(err, b.group.Close())
			}
		}
	}()
	for _, step := range []func(*box) error{l.findGroup, l.findInit, l.findMounts, l.findSlots, l.watch} {
		if err := step(b); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// findLease checks that the id range of a box still belongs to it. name is that of its lease.
func (l *Launcher) findLease(name string, r *boxRecord) (*idLease, error) {
	path := filepath.Join(l.instance.state, "ids", strconv.Itoa((r.IDBase-idBase)/idRange))
	owner, err := os.Readlink(path)
	if err == nil && owner != l.instance.owner(name) {
		err = fmt.Errorf("it belongs to %q", owner)
	}
	if err != nil {
		return nil, fmt.Errorf("id range from %d: %w", r.IDBase, err)
	}
	return &idLease{Base: r.IDBase, path: path}, nil
}

func (l *Launcher) findGroup(b *box) error {
	if want := cgroupName(l.instance.dir, b.name); b.record.Cgroup != want {
		return fmt.Errorf("its cgroup is %q, not %q", b.record.Cgroup, want)
	}
	owner := cgroups.Owner{UID: b.lease.Base + agentID, GID: b.lease.Base + agentID}
	group, err := l.cgroups.Adopt(b.record.Cgroup, owner, limitsOf(b.spec, b.record.Limits))
	if err != nil {
		return err
	}
	group.NumberFrom(l.generation << slotBits)
	b.group = group
	if err := group.Debit(0); err != nil { // the previous launcher may have lowered the limit
		return err
	}
	// The previous launcher may have been killed in unmount, or between the record and the pause that it tells of.
	b.paused = b.record.Paused
	if !b.paused {
		return group.Thaw()
	}
	ctx, cancel := context.WithTimeout(context.Background(), freezeTime)
	defer cancel()
	return errors.Join(group.ThawInit(), group.Pause(ctx))
}

// findInit opens a pidfd of PID 1 and then checks that it is the recorded process: a pidfd
// stays with its process, a number does not.
func (l *Launcher) findInit(b *box) error {
	var err error
	if b.pidfd, err = linux.PidfdOpen(b.pid); err != nil {
		return fmt.Errorf("PID 1 has ended: %w", err)
	}
	start, err := linux.StartTime(b.pid)
	if err != nil {
		return err
	}
	if start != b.record.Start {
		return fmt.Errorf("process %d started at tick %d, PID 1 at %d", b.pid, start, b.record.Start)
	}
	in, err := b.group.HasInit(b.pid)
	if err != nil {
		return err
	}
	if !in {
		return fmt.Errorf("process %d is not in the cgroup of its PID 1", b.pid)
	}
	if ended, err := linux.HasExited(b.pidfd, 0); ended || err != nil {
		return errors.Join(errors.New("PID 1 has ended"), err)
	}
	return nil
}

// findMounts holds the layers of the box's root, and finds out which recorded mounts exist. A
// launcher may have been killed between mounting and recording.
func (l *Launcher) findMounts(b *box) error {
	for _, id := range b.spec.Layers {
		l.layers.holdAdopted(id, b.id)
	}
	return b.withNS(func(ns mounts.NS) error {
		for _, m := range b.record.Mounts {
			l.layers.holdAdopted(m.Layer, b.id) // whether or not it is mounted: it has no other use then
			is, err := b.isMounted(ns, &m)
			switch {
			case err != nil && (isShortage(err) || b.stillThere() != nil):
				return err
			case err == nil && is:
				b.mounted[m.Target] = m
				l.storage.holdAdopted(m.Volume, b.id)
			}
		}
		return nil
	})
}

// isMounted reports whether a recorded mount exists, and fills in its ID if that was not
// recorded. A recorded ID is looked for in the whole mount table, because the box may have
// moved the mount with the directory that contains it, and put something else at the target.
func (b *box) isMounted(ns mounts.NS, m *mounted) (bool, error) {
	if m.ID != pending {
		return mounts.IsMounted(ns, b.pid, m.ID)
	}
	at, err := mounts.MountAt(ns, m.Target)
	m.ID = at
	return at != m.Under && at != 0, err
}

// findSlots finds the slots of commands. Slots with processes that were left on purpose are
// released when those end; the others wait for a client.
func (l *Launcher) findSlots(b *box) error {
	names, err := b.group.Slots()
	if err != nil {
		return err
	}
	marks, err := b.kept()
	if err != nil {
		return err
	}
	for _, name := range names {
		s, err := b.group.Slot(name)
		if err != nil {
			return err
		}
		b.slots[name] = s
	}
	for name, key := range marks {
		if b.slots[name] == nil {
			b.unmark(name)
		} else if key == "" && name != b.sandbox { // whose figures say why the box is lost
			l.release(b, name)
		}
	}
	return nil
}

// watch adds the box to the watcher of limits. Boxes work without it on a host that cannot
// report them.
func (l *Launcher) watch(b *box) error {
	b.watcher = l.service.watcher
	l.service.events.rename(b.name, b.id)
	if err := b.watcher.Add(b.group); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: box %q: no events: %v\n", b.id, err)
	}
	return nil
}

// killForeign kills the commands of a client that is gone: those in slots without a mark. It
// returns the slots of managed processes, with their keys.
func (l *Launcher) killForeign(b *box) (managed map[string]string, err error) {
	marks, err := b.kept()
	if err != nil {
		return nil, fmt.Errorf("finding commands of box %q: %w", b.id, err)
	}
	b.mu.Lock()
	slots := maps.Clone(b.slots)
	b.mu.Unlock()
	managed = map[string]string{}
	var wg sync.WaitGroup
	errs := make(chan error, len(slots))
	for name, s := range slots {
		if key, ok := marks[name]; ok {
			if key != "" {
				managed[name] = key
			}
			continue
		}
		wg.Go(func() {
			errs <- b.killSlot(s)
			l.release(b, name)
		})
	}
	wg.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return managed, err
}

// specNow returns the spec of a box with all changes since its creation.
func (b *box) specNow() engine.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.spec
	s.ID, s.Limits, s.Mounts = b.id, b.record.Limits, nil
	for _, m := range b.mounted {
		if m.ID != pending {
			s.Mounts = append(s.Mounts, m.Mount)
		}
	}
	s.Mounts = spec.InOrder(s.Mounts)
	return s
}
