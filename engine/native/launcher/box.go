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

	lease     *idLease
	group     *cgroups.Group
	root      *rootfs.Root
	user      *os.File // user namespace, until PID 1 is in it
	network   *os.File // network namespace, likewise
	container *libcontainer.Container
	process   *libcontainer.Process
	pid       int
	control   *wire.Conn    // the agent's first connection; closing it ends the agent
	listener  *os.File      // where the agent takes further ones
	ns        mounts.NS     //
	reaped    chan struct{} // closed when PID 1 has been waited for

	mu      sync.Mutex
	slots   map[string]*cgroups.Slot
	mounted map[string]mounts.MountID // by target
	userNS  map[string]*os.File       // by id map
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
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	b.mu.Lock()
	b.removed = true
	b.mu.Unlock()
	b.end()
	var errs []error
	if b.group != nil && b.reaped == nil {
		// Where PID 1 can be waited for, its end is that of everything in its pid
		// namespace, and nothing of the box is outside.
		errs = append(errs, b.group.Kill())
	}
	if b.control != nil {
		b.control.Close()
	}
	b.users.Wait()
	errs = append(errs, b.destroyContainer(ctx), b.destroySlots())
	if b.group != nil {
		errs = append(errs, b.group.Remove(ctx))
		b.group.Close()
	}
	if b.root != nil {
		errs = append(errs, b.root.Close())
	}
	b.closeFiles()
	if err := errors.Join(errs...); err != nil {
		// The directory and the lease stay: the next launcher sweeps again.
		return fmt.Errorf("removing box %q: %w", b.id, err)
	}
	if b.private != "" {
		errs = append(errs, os.RemoveAll(b.private))
	}
	if b.dir != "" {
		errs = append(errs, os.RemoveAll(b.dir))
	}
	if b.lease != nil {
		errs = append(errs, b.lease.release())
	}
	return errors.Join(errs...)
}

// destroyContainer kills PID 1, and with it every process of its pid namespace,
// and waits until it has been reaped.
func (b *box) destroyContainer(ctx context.Context) error {
	if b.container == nil {
		return nil
	}
	if b.reaped != nil {
		if err := b.process.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("killing PID 1: %w", err)
		}
		select {
		case <-b.reaped:
		case <-ctx.Done():
			return fmt.Errorf("waiting for PID 1: %w", ctx.Err())
		}
	}
	return b.container.Destroy()
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
