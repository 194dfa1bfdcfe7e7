package cgroups

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// reclaimChunk is how many bytes the kernel is asked for at a time: between two requests, Reclaim can end.
const reclaimChunk = 4 << 20

// reclaimTries is how often in a row the kernel may reclaim nothing before Reclaim ends. Pages that are on their
// way to a slow swap area are free only once they are written.
const reclaimTries = 3

// reclaimRetry is the time between two of these tries.
const reclaimRetry = 5 * time.Millisecond

// WhyNoReclaim says in a few words why [Group.Reclaim] cannot give memory to the host, or is empty.
//
// v1's memory.force_empty is no substitute: it takes no amount and so cannot be bounded, and a limit of memsw, which
// includes swap, would be the limit of memory while pages are in swap.
func (g *Group) WhyNoReclaim() string {
	if g.v1Tree("memory") != nil {
		return "the memory controller of this host is that of cgroup v1, which has no memory.reclaim"
	}
	if _, err := g.carrier("memory", "memory", "memory.reclaim"); err != nil {
		return "this kernel has no memory.reclaim, which is in Linux 5.19 and later"
	}
	if !hostSwaps() {
		return "this host has no swap, so memory of programs has nowhere else to be"
	}
	return ""
}

// Reclaim gives memory of the box's commands to the host: page cache, and what swap has room for. It
// ends when nothing more can be reclaimed, or with ctx, which is no error. It returns by how many bytes the charge
// of the box has fallen. The commands should be paused: those that run get their memory back as fast as it is taken.
//
// A box with a memory limit cannot swap. It may while Reclaim works, up to its limit; afterwards it cannot again, but
// what is in swap stays there until it is used. So until then the box can hold up to its limit in swap, in
// addition to its limit in RAM. [Group.Resume] ends that permission too, and after the death of this process
// [Host.Adopt]. Slots with a limit of their own do not swap.
func (g *Group) Reclaim(ctx context.Context) (bytes int64, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("reclaiming memory of box %q: %w", g.ID, err)
		}
	}()
	before, err := readNumber(g.v2.box, "work/memory.current")
	if err != nil {
		return 0, ignoreGone(err)
	}
	if err := g.allowSwap(ctx); err != nil {
		return 0, ignoreGone(err)
	}
	now, err := g.reclaim(ctx, before)
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(before-now, 0), errors.Join(err, ignoreGone(g.forbidSwapLocked()))
}

// reclaim returns what is left of used bytes.
func (g *Group) reclaim(ctx context.Context, used int64) (int64, error) {
	for tries := reclaimTries; used > 0 && tries > 0 && ctx.Err() == nil; {
		err := linux.WriteFileAt(g.v2.box, "work/memory.reclaim", strconv.FormatInt(min(used, reclaimChunk), 10))
		if err != nil && !errors.Is(err, unix.EAGAIN) { // EAGAIN: less than that was reclaimed
			return used, ignoreGone(err)
		}
		now, err := readNumber(g.v2.box, "work/memory.current")
		if err != nil {
			return used, ignoreGone(err)
		}
		if now < used {
			used, tries = now, reclaimTries
			continue
		}
		tries--
		select {
		case <-time.After(reclaimRetry):
		case <-ctx.Done():
		}
	}
	return used, nil
}

// allowSwap lets a box with a memory limit swap as much as its limit, unless ctx has ended: the box may go on then.
func (g *Group) allowSwap(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	if !exists(g.v2.box, "work/memory.swap.max") { // a box that swaps anyway, which its maker has accepted
		return nil
	}
	limit := g.limits.normal().Memory
	return apply([]*knob{
		{dir: g.v2.box, file: "memory.swap.max", value: limit, style: v2Number},
		{dir: g.v2.box, file: "work/memory.swap.max", value: limit, style: v2Number},
	})
}

// forbidSwapLocked ends allowSwap. On v1, where nothing allows swap, it does nothing. The caller holds g.mu.
func (g *Group) forbidSwapLocked() error {
	if g.limits.normal().Memory < 0 || g.v1Tree("memory") != nil {
		return nil
	}
	err := g.noSwap()
	if _, ok := errors.AsType[*UnenforceableError](err); ok { // accepted when the box was made
		return nil
	}
	return err
}
