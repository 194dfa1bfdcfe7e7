package launcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/rootfs"
	"golang.org/x/sys/unix"
)

// removeTime bounds how long the processes of a box may take to die of SIGKILL.
const removeTime = 30 * time.Second

// box owns everything that exists for one box. A part is nil until it is made. destroy
// removes the parts that there are, in the opposite order.
type box struct {
	id      string
	name    string        // that of its cgroups and its lease: the ID, unless it was built for the pool
	blank   bool          // it is being built for the pool
	first   *cgroups.Slot // of a box of the pool, until the box is handed over; it is one of slots
	carried *carried      // of a box of the pool, until the box is handed over; nil: it has no zygotes
	warmth  int64         // what they take, in bytes
	spec    engine.Spec
	dir     string    // its files in the state directory, which the next launcher finds
	private string    // its files in the launcher's own tmpfs
	work    *work     // the create that made the box; nil for an adopted box
	coarse  sync.Once // see coarsen

	lease    *idLease
	group    *cgroups.Group
	watcher  *cgroups.Watcher // the launcher's, which reports the group's limits; may be nil
	root     *rootfs.Root
	user     *os.File   // user namespace, until PID 1 is in it
	network  *os.File   // network namespace, until PID 1 is in it
	runtime  boxRuntime // what started PID 1
	sandbox  string     // slot of the sandbox of a gVisor box; empty: not known
	pid      int
	pidfd    *os.File      // of PID 1, opened before anything could reap it; nil before there is a PID 1
	control  *wire.Conn    // the agent's first connection; closing it ends the agent
	listener *os.File      // where the agent accepts further connections
	ns       mounts.NS     //
	reaped   chan struct{} // closed when PID 1 has been reaped; nil if it is not a child of this process

	wave    place // among the boxes that end with this process
	turn    *turn // to end; nil until it has one
	service bool  // the box outlives the launcher

	// Lock order: limiting, saving, mu.
	limiting sync.Mutex // held to change limits
	freezing sync.Mutex // held to freeze and thaw the box; before saving
	paused   bool       // the commands stand still; guarded by freezing
	reclaims func()     // ends a reclaim in progress; guarded by freezing; nil: none is
	showing  sync.Mutex // held to write the files that show the box its limits
	saving   sync.Mutex // held to write the record

	mu      sync.Mutex
	record  *boxRecord // of a service's box, once it is complete
	slots   map[string]*cgroups.Slot
	mounted map[string]mounted  // by target
	userNS  map[string]*os.File // by id map
	leaving int                 // slots taken by takeSlot that still exist
	outside heldOutside
	stale   bool // the use that the box is shown may be out of date
	removed bool
	users   sync.WaitGroup // requests that work on the box

	life     context.Context // ends when destroy begins
	end      context.CancelFunc
	dropping sync.WaitGroup // slots that are being removed
}

// enter keeps the parts of the box alive until leave is called. It returns false once
// destroy has begun.
func (b *box) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.removed {
		b.users.Add(1)
	}
	return !b.removed
}

func (b *box) leave() { b.users.Done() }

// runsLocked reports whether a command may run in the box: every command has a slot.
func (b *box) runsLocked() bool { return len(b.slots)+b.leaving > 0 }

// destroy ends the box and removes everything that belongs to it. It continues after a
// failure, and returns all failures.
func (b *box) destroy() error {
	b.mu.Lock()
	b.removed = true
	b.mu.Unlock()
	b.end()
	if b.turn == nil {
		b.turn, _ = endings.takeTurn(context.Background()) // this ends: every turn is given back in time
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	err := b.kill() // first: the following steps may wait
	ended := b.awaitEnd(ctx)
	b.turn.give()
	b.turn = nil
	b.users.Wait()
	if ended == nil && b.group != nil { // without cgroups, no birth was prepared
		ended = b.runtime.forget(ctx, b.group.ID)
	}
	unborn := b.group != nil && b.pidfd == nil
	if err := errors.Join(err, ended, b.destroyParts(ctx)); err != nil {
		// The directory and the lease stay, and the next launcher sweeps again.
		return fmt.Errorf("removing box %q: %w", b.id, err)
	}
	if unborn {
		reapStrays(b.group.ID)
	}
	b.wave.leave()
	return b.forget()
}

// kill sends SIGKILL to PID 1. The kernel then kills everything in its pid namespace, and no
// process of the box is outside it. Before there is a PID 1, kill kills the cgroup.
func (b *box) kill() (err error) {
	switch {
	case b.pidfd != nil:
		err = linux.PidfdSignal(b.pidfd, unix.SIGKILL)
		if errors.Is(err, unix.ESRCH) {
			err = nil
		}
	case b.group != nil:
		err = b.group.Kill()
	}
	if b.control != nil {
		b.control.Close()
	}
	return err
}

// destroyParts removes the slots, the cgroups and the root, and closes all descriptors.
func (b *box) destroyParts(ctx context.Context) error {
	b.dropping.Wait()
	b.mu.Lock()
	for _, s := range b.slots {
		s.Close()
	}
	clear(b.slots)
	b.mu.Unlock()
	var errs []error
	if b.group != nil {
		b.watcher.Remove(b.group) // a nil Watcher is fine
		errs = append(errs, b.group.Remove(ctx))
		b.group.Close()
	}
	if b.root != nil {
		errs = append(errs, b.root.Close())
	}
	b.carried.close()
	b.listener.Close() // a nil file is fine
	b.network.Close()
	b.user.Close()
	b.pidfd.Close()
	_ = b.ns.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	linux.CloseAll(slices.Collect(maps.Values(b.userNS)))
	clear(b.userNS)
	return errors.Join(errs...)
}

// forget removes the directories and the lease of a box that is gone.
func (b *box) forget() error {
	var errs []error
	for _, dir := range []string{b.private, b.dir} {
		if dir != "" {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	if b.lease != nil {
		errs = append(errs, b.lease.release())
	}
	return errors.Join(errs...)
}

// awaitEnd waits until PID 1, which was killed, has ended, and has been reaped if it is a
// child of this process.
func (b *box) awaitEnd(ctx context.Context) error {
	switch {
	case b.reaped != nil:
		select {
		case <-b.reaped:
			return nil
		case <-ctx.Done():
		}
	case b.pidfd != nil: // another launcher or a runtime's process is its parent
		for ctx.Err() == nil {
			if ended, err := linux.HasExited(b.pidfd, time.Second); ended || err != nil {
				return err
			}
		}
	default:
		return nil
	}
	return fmt.Errorf("waiting for PID 1: %w", ctx.Err())
}
