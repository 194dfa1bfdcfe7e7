package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/rootfs"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// removeTime bounds how long the processes of a box may take to die of SIGKILL.
const removeTime = 30 * time.Second

// box is everything that exists because of one box. The parts are nil until they
// are made; destroy takes apart what is there, in the opposite order.
type box struct {
	id   string
	spec engine.Spec
	dir  string // what others must find after a crash
	// private is for what nobody else needs to see.
	private string
	work    *work     // that makes the box; nil for one that was adopted
	coarse  sync.Once // see coarsen

	lease     *idLease
	group     *cgroups.Group
	watcher   *cgroups.Watcher // of the group's limits, the launcher's; nil without one
	root      *rootfs.Root
	user      *os.File // user namespace, until PID 1 is in it
	network   *os.File // network namespace, likewise
	container *libcontainer.Container
	process   *libcontainer.Process
	pid       int
	pidfd     *os.File      // of PID 1, opened before it could be waited for
	control   *wire.Conn    // the agent's first connection; closing it ends the agent
	listener  *os.File      // where the agent takes further ones
	ns        mounts.NS     //
	reaped    chan struct{} // closed when PID 1 has been waited for

	wave     place      // among the boxes that end with this process
	turn     *turn      // to end; nil: it has none yet
	service  bool       // the box outlives the launcher
	limiting sync.Mutex // before saving: who changes limits
	freezing sync.Mutex // who stops the box for a moment
	showing  sync.Mutex // who writes what the box is shown
	saving   sync.Mutex // before mu: who writes the record

	mu      sync.Mutex
	record  *boxRecord // of a box of a service, once it is complete
	slots   map[string]*cgroups.Slot
	mounted map[string]mounted  // by target
	userNS  map[string]*os.File // by id map
	leaving int                 // slots of takeSlot that are not gone yet
	outside heldOutside
	stale   bool // what the box is shown of its use may be old
	removed bool
	users   sync.WaitGroup // requests that work on the box

	life     context.Context // ends when destroy begins
	end      context.CancelFunc
	dropping sync.WaitGroup // slots on their way out
}

// enter keeps the parts of the box alive until leave. It is false once they are
// being taken apart.
func (b *box) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.removed {
		b.users.Add(1)
	}
	return !b.removed
}

func (b *box) leave() { b.users.Done() }

// destroy ends the box and removes all that belongs to it. It goes on after a
// failure, and reports all of them.
func (b *box) destroy() error {
	b.mu.Lock()
	b.removed = true
	b.mu.Unlock()
	b.end()
	if b.turn == nil {
		b.turn, _ = endings.take(context.Background()) // there will be a turn: each is given back in time
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	err := b.kill() // first: what follows may wait for others
	ended := b.awaitEnd(ctx)
	b.turn.give()
	b.turn = nil
	b.users.Wait()
	if ended == nil && b.container != nil {
		ended = b.container.Destroy()
	}
	if err := errors.Join(err, ended, b.destroyParts(ctx)); err != nil {
		// The directory and the lease stay: the next launcher sweeps again.
		return fmt.Errorf("removing box %q: %w", b.id, err)
	}
	b.wave.leave()
	return b.forget()
}

// kill sends SIGKILL to all processes of the box. Where PID 1 can be waited for,
// its end is that of everything in its pid namespace, and nothing of the box is
// outside.
func (b *box) kill() (err error) {
	switch {
	case b.reaped != nil:
		err = b.process.Signal(unix.SIGKILL)
		if errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
	case b.adopted():
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

// adopted says that another launcher made the box.
func (b *box) adopted() bool { return b.process == nil && b.pidfd != nil }

// destroyParts takes apart what the box was made of.
func (b *box) destroyParts(ctx context.Context) error {
	errs := []error{b.destroySlots()}
	if b.group != nil {
		b.watcher.Remove(b.group) // a nil Watcher is fine
		errs = append(errs, b.group.Remove(ctx))
		b.group.Close()
	}
	if b.root != nil {
		errs = append(errs, b.root.Close())
	}
	b.closeFiles()
	return errors.Join(errs...)
}

// forget removes the record of a box that is gone.
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

// awaitEnd waits for the end of PID 1, which was killed: until it has been reaped, where it
// is a child.
func (b *box) awaitEnd(ctx context.Context) error {
	switch {
	case b.reaped != nil:
		select {
		case <-b.reaped:
			return nil
		case <-ctx.Done():
		}
	case b.adopted():
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

func (b *box) destroySlots() error {
	b.dropping.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, s := range b.slots {
		s.Close()
		delete(b.slots, name)
	}
	return nil
}

func (b *box) closeFiles() {
	b.listener.Close() // a nil file is fine
	b.network.Close()
	b.user.Close()
	b.pidfd.Close()
	_ = b.ns.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, f := range b.userNS {
		f.Close()
		delete(b.userNS, key)
	}
}

// reap waits for PID 1, once.
func (b *box) reap() {
	b.reaped = make(chan struct{})
	go func() {
		defer close(b.reaped)
		_, _ = b.process.Wait()
	}()
}
