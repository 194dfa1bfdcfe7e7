package launcher

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/netns"
)

// networks keeps one network namespace ready. Making one takes the kernel about a
// millisecond, which few boxes then have to wait for. The namespace belongs to the
// host's user namespace, so no process in a box has power over it.
type networks struct {
	make  func() (*os.File, error)
	ready chan made
	taken atomic.Bool // and the next one is not being made yet
	once  bool        // only the first one is made ahead
	asked atomic.Bool // prepare has been called
	begun atomic.Bool // take has been called; only with once
}

type made struct {
	ns  *os.File
	err error
}

// newNetworks begins to make the first namespace. mk is makeNetwork, except in tests.
func newNetworks(once bool, mk func() (*os.File, error)) *networks {
	n := &networks{make: mk, ready: make(chan made, 1), once: once}
	n.taken.Store(true)
	n.prepare()
	return n
}

// prepare makes the next namespace in the background, unless there is one already or one is
// being made.
func (n *networks) prepare() {
	if n.asked.Swap(true) && n.once || !n.taken.CompareAndSwap(true, false) {
		return
	}
	go func() {
		ns, err := n.make()
		n.ready <- made{ns, err}
	}()
}

// take returns a new namespace. The caller owns it, and calls prepare when there is time.
// Concurrent callers do not wait for each other.
func (n *networks) take() (*os.File, error) {
	if n.once {
		if n.begun.Swap(true) {
			return n.make()
		}
		m := <-n.ready // being made since the start: another one beside it would take longer
		n.taken.Store(true)
		return m.ns, m.err
	}
	select {
	case m := <-n.ready:
		n.taken.Store(true)
		return m.ns, m.err
	default:
		return n.make()
	}
}

// close closes the namespace that is ready or being made, unless making it hangs.
func (n *networks) close() {
	if n.taken.Load() {
		return
	}
	select {
	case m := <-n.ready:
		m.ns.Close() // a nil file is fine
	case <-time.After(stallTime):
	}
}

// makeNetwork makes a namespace and proves that nothing leads out of it.
func makeNetwork() (*os.File, error) {
	ns, err := netns.New()
	if err != nil {
		return nil, err
	}
	if err := netns.Verify(ns); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// fdPath returns a path by which a child of this process can open f.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }
