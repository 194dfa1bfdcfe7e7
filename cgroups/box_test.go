package cgroups

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

var lastID atomic.Int64

// testID is a box id that no other test process uses.
func testID() string { return fmt.Sprintf("cgtest-%d-%d", os.Getpid(), lastID.Add(1)) }

// testHost detects the host's cgroups.
func testHost(t testing.TB) *Host {
	t.Helper()
	testutil.RequireRoot(t)
	h, err := Detect()
	check(t, err)
	t.Cleanup(func() { check(t, h.Close()) })
	return h
}

// testBox is a Group with spawner threads like those of a box's agent: they start all
// commands.
type testBox struct {
	*Group
	spawn chan func()
}

// newBox makes a box that is killed and removed when the test ends.
func newBox(t testing.TB, l Limits) *testBox {
	t.Helper()
	return newBoxOn(t, testHost(t), l)
}

func newBoxOn(t testing.TB, h *Host, l Limits) *testBox {
	t.Helper()
	return newOwnedBox(t, h, Owner{}, l)
}

func newOwnedBox(t testing.TB, h *Host, owner Owner, l Limits) *testBox {
	t.Helper()
	g, err := h.Create(testID(), owner, l)
	check(t, err)
	b := &testBox{Group: g, spawn: make(chan func())}
	ended := make(chan error, SpawnerThreads)
	t.Cleanup(func() {
		check(t, g.Kill())
		close(b.spawn)
		for range SpawnerThreads {
			check(t, <-ended)
		}
		check(t, g.Remove(context.Background()))
	})
	for range SpawnerThreads {
		entered := make(chan error)
		go func() { ended <- b.spawner(entered) }()
		check(t, <-entered)
	}
	return b
}

// spawner is one spawner thread. It moves back when the box ends, because it may be the
// main thread, which cannot be thrown away.
func (b *testBox) spawner(entered chan<- error) error {
	runtime.LockOSThread()
	home, err := b.HomeTasks()
	if err == nil {
		for _, f := range home {
			if _, werr := unix.Write(int(f.Fd()), []byte("0")); werr != nil {
				err = werr
			}
			f.Close()
		}
	}
	entered <- err
	for fn := range b.spawn {
		fn()
	}
	err = b.LeaveThread()
	runtime.UnlockOSThread()
	return err
}

// slot creates a slot and opens its figures. The slot is removed with the box.
func (b *testBox) slot(t testing.TB) (*Slot, *SlotStats) {
	t.Helper()
	s, err := b.NewSlot()
	check(t, err)
	stats := OpenStats(s.Stats)
	s.Stats = nil // now owned by stats
	t.Cleanup(func() {
		check(t, stats.Close())
		check(t, s.Close())
	})
	return s, stats
}

// start starts a role in a slot.
func (b *testBox) start(t testing.TB, s *Slot, role string, args ...string) *child {
	t.Helper()
	c := newChild(t, s, role, args...)
	done := make(chan error)
	b.spawn <- func() { done <- c.cmd.Start() }
	err := <-done
	c.started()
	check(t, err)
	return c
}

// number reads a number from a file of the box on the hierarchy of a controller.
func (b *testBox) number(t testing.TB, controller, v2, v1 string) int64 {
	t.Helper()
	dir, name := b.v2.box, v2
	if tree := b.v1Tree(controller); tree != nil {
		dir, name = tree.box, v1
	}
	n, err := (&knob{dir: dir, file: name}).read()
	check(t, err)
	return n
}

// inForce reads the limits that the kernel has on work.
func (b *testBox) inForce(t testing.TB) (memory, pids, cpu int64) {
	t.Helper()
	pids = b.number(t, "pids", "work/pids.max", "work/pids.max")
	if b.v1Tree("pids") != nil && pids != Unlimited {
		pids -= SpawnerThreads
	}
	return b.number(t, "memory", "work/memory.max", "work/memory.limit_in_bytes"), pids,
		b.number(t, "cpu", "work/cpu.max", "work/cpu.cfs_quota_us")
}

// mustBeGone fails if any directory of a box is left on any hierarchy.
func mustBeGone(t testing.TB, h *Host, id string) {
	t.Helper()
	for _, on := range h.trees() {
		if exists(on.dir, baseName+"/"+id) {
			t.Errorf("box %s is left on %s", id, on.dir.Name())
		}
	}
}
