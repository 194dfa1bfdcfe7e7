package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
)

// Slot is the cgroups of one command. It owns its descriptors, which may be sent to other
// processes; those then have their own.
type Slot struct {
	// Name of the slot within its box, such as "7".
	Name string
	// Dir is the cgroup2 directory for clone3(CLONE_INTO_CGROUP): an O_PATH descriptor
	// in a read-only mount whose root is boxd/<box>.
	Dir *os.File
	// Tasks are the v1 tasks files, open for writing. A single thread enters the slot by
	// writing "0" to each. On a host without v1 controllers there are none.
	//
	// The child itself writes them, between clone and exec. This takes half as many
	// writes as moving the spawner thread there and back, and the spawner never counts
	// in the command's peak number of processes.
	Tasks []*os.File
	// Stats are read-only files for [OpenStats], in the order of the Stat constants. A
	// file that this host does not have is nil.
	Stats []*os.File

	group *Group
}

// NewSlot creates the next slot of the box. The caller owns it and ends it with Remove.
func (g *Group) NewSlot() (_ *Slot, err error) {
	s := &Slot{group: g}
	var undo cleanup.Stack
	defer undo.Undo(&err)
	undo.Push(s.Close)
	if err := s.mkdir(&undo); err != nil {
		return nil, fmt.Errorf("making a slot of box %q: %w", g.ID, err)
	}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("opening slot %s of box %q: %w", s.Name, g.ID, err)
	}
	s.Watch()
	undo.Release()
	return s, nil
}

// Watch watches a slot that was created before its box was added to a [Watcher]. [Group.NewSlot] does it
// for others.
func (s *Slot) Watch() {
	if w := s.group.watcher.Load(); w != nil {
		w.addSlot(s.group, s.Name)
	}
}

// mkdir creates the directories on all hierarchies.
func (s *Slot) mkdir(undo *cleanup.Stack) error {
	g := s.group
	for {
		s.Name = strconv.FormatInt(g.lastSlot.Add(1), 10)
		err := linux.MkdirAt(g.v2.box, s.path(), 0o755)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	undo.Push(s.rmdir)
	for _, t := range g.slotTreesV1() {
		if err := linux.MkdirAt(t.box, s.path(), 0o755); err != nil {
			return err
		}
	}
	if err := s.countSockets(); err != nil {
		return err
	}
	procs := s.path() + "/cgroup.procs"
	if err := linux.Fchownat(g.v2.box, procs, g.owner.UID, g.owner.GID); err != nil {
		return err
	}
	if !g.v2.on.has("memory") {
		return nil
	}
	// Make an OOM kill end the whole command: the rest of a half-killed pipeline would
	// report success. The kernel picks the victim among all commands of the box and then
	// kills its whole slot (memory.oom.group, Linux 4.19). v1 has no equivalent.
	return ignoreGone(linux.WriteFileAt(g.v2.box, s.path()+"/memory.oom.group", "1"))
}

// OpenProcs opens cgroup.procs of the slot on cgroup2 for writing, for an agent that moves a
// running process into the slot. The caller owns the file.
//
// Whoever has the file can write any number to it. The kernel looks the number up in the PID
// namespace of the writer, and checks with the credentials of the opener, which are the
// owner's, that the process may leave its cgroup: cgroup.procs of the common ancestor must be
// writable for them (cgroup_procs_write_permission in kernel/cgroup/cgroup.c; the opener's
// since the fix of CVE-2021-4197 in Linux 5.16, before that the writer's). The highest such file
// is that of boxd/<box>. So the file moves processes of this box only, also if the box hands
// it to a process of the host.
func (s *Slot) OpenProcs() (f *os.File, err error) {
	owner := s.group.owner
	err = linux.AsOwner(uint32(owner.UID), uint32(owner.GID), func() error {
		f, err = linux.OpenAt(s.group.v2.box, s.path()+"/cgroup.procs", unix.O_WRONLY)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening cgroup.procs of slot %s of box %q: %w", s.Name, s.group.ID, err)
	}
	return f, nil
}

func (s *Slot) path() string { return "work/" + s.Name }

// open opens all exported descriptors.
func (s *Slot) open() (err error) {
	g := s.group
	if s.Dir, err = openDir(g.sealed, s.path()); err != nil {
		return err
	}
	for _, t := range g.slotTreesV1() {
		f, err := linux.OpenAt(t.box, s.path()+"/tasks", unix.O_WRONLY)
		if err != nil {
			return err
		}
		s.Tasks = append(s.Tasks, f)
	}
	s.Stats, err = g.openStats(s.path())
	return err
}

// HomeTasks opens the v1 tasks files of the cgroups in which the agent's spawner threads
// live. The caller owns them. Each spawner writes "0" to each file once, before its first
// clone, and never moves again; its children do, see [Slot.Tasks].
//
// For pids, spawners live in work. So the kernel refuses a fork beyond the limit of the box
// to the spawner itself (it would not check a process that moves there), and PID 1's other
// threads are not under that limit. The limit is higher by SpawnerThreads. For CPU time,
// spawners live in work as well: commands start there, and have no cgroups of their own for
// it. For memory, they live in boxd/<box>: a spawner is a thread of PID 1, which must not
// run out of memory when commands use up theirs.
func (g *Group) HomeTasks() (_ []*os.File, err error) {
	var files []*os.File
	var undo cleanup.Stack
	defer undo.Undo(&err)
	for _, t := range g.v1 {
		name := "work/tasks"
		if t.on.has("memory") {
			name = "tasks"
		}
		f, err := linux.OpenAt(t.box, name, unix.O_WRONLY)
		if err != nil {
			return nil, fmt.Errorf("opening the spawner's cgroups of box %q: %w", g.ID, err)
		}
		undo.Push(f.Close)
		files = append(files, f)
	}
	undo.Release()
	return files, nil
}

// Signal sends sig once to every process in the slot.
func (s *Slot) Signal(sig unix.Signal) error {
	return s.on(func(dir *os.File) error { return signalTree(dir, sig) })
}

// Kill sends SIGKILL to every process in the slot, including daemons that have forked twice
// and called setsid, without waiting for them to exit.
func (s *Slot) Kill() error { return s.on(killTree) }

// KillCommand sends SIGKILL to the command that had the processes pids in the slot, and to no later one that the
// slot serves: a slot is renewed only after commands of one process each, see [SlotStats.Renewable]. So a process that was
// alone gets the signal by itself; what it has forked since does not. It returns false if the command has ended.
func (s *Slot) KillCommand(pids []int) (killed bool, err error) {
	if len(pids) != 1 {
		return true, s.Kill()
	}
	process, err := linux.PidfdOpen(pids[0])
	if err == nil {
		defer process.Close()
		var now []int // another process with this number would not be in the slot
		if now, err = readPIDs(s.group.v2.box, s.path()+"/cgroup.procs"); err == nil && !slices.Contains(now, pids[0]) {
			return false, nil
		}
	}
	if err == nil {
		err = linux.PidfdSignal(process, unix.SIGKILL)
	}
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("slot %s of box %q: %w", s.Name, s.group.ID, err)
	}
	return true, nil
}

// on calls fn with the slot's writable cgroup2 directory; Dir is read-only. It is not an
// error if the slot is gone.
func (s *Slot) on(fn func(dir *os.File) error) error {
	if s.group.v2.box == nil {
		return nil
	}
	dir, err := openDir(s.group.v2.box, s.path())
	if err != nil {
		return ignoreGone(err)
	}
	defer dir.Close()
	if err := fn(dir); err != nil {
		return fmt.Errorf("slot %s of box %q: %w", s.Name, s.group.ID, err)
	}
	return nil
}

// Remove removes the slot and closes its descriptors. It waits for dying processes until ctx
// ends, but at most a few seconds; if the slot is still in use, the error is EBUSY.
func (s *Slot) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	err := whileBusy(ctx, func() error {
		s.unwatch(false)
		return s.rmdir()
	})
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("removing slot %s of box %q: %w", s.Name, s.group.ID, err)
	}
	s.unwatch(true)
	return errors.Join(err, s.Close())
}

func (s *Slot) unwatch(gone bool) {
	if w := s.group.watcher.Load(); w != nil {
		w.removeSlot(s.group, s.Name, gone)
	}
}

func (s *Slot) rmdir() error {
	var errs []error
	for _, t := range s.group.slotTrees() {
		if t.box == nil {
			continue // the box was removed, and the slot with it
		}
		if err := linux.RmdirAt(t.box, s.path()); !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// CloseBirth closes Dir and Tasks, of a slot whose command has its process. It may be called more than once.
func (s *Slot) CloseBirth() {
	linux.CloseAll(append(s.Tasks, s.Dir)) // a nil file is fine
	s.Dir, s.Tasks = nil, nil
}

// Close closes the descriptors and leaves the cgroups. It may be called more than once.
func (s *Slot) Close() error {
	s.CloseBirth()
	var errs []error
	for _, f := range s.Stats {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	s.Stats = nil
	return errors.Join(errs...)
}
