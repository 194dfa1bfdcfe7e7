package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// maxEarly is how many unknown boxes can have events waiting for their adoption: as many as
// there can be boxes. Events of boxes that are already gone must not add up forever.
const maxEarly = 4096

// core is the common part of Engine and Service.
type core struct {
	link    *link
	log     *slog.Logger
	null    *os.File // /dev/null, for commands without a file of the caller's
	service bool     // the boxes outlive this process
	// endedSlots counts the slots of ended commands that boxes keep.
	endedSlots atomic.Int64

	mu     sync.Mutex
	boxes  map[*box]struct{}
	early  map[string]map[engine.EventKind]int64 // events of boxes that are not in boxes yet
	closed bool
}

// create has the launcher build a box.
func (c *core) create(ctx context.Context, spec engine.Spec) (*box, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if spec.ID == "" {
		spec.ID = randomID() // chosen here, so that a request to remove it can name it before it exists
	}
	spec = spec.WithDefaults()
	var created rpc.Created
	files, err := c.link.call(ctx, rpc.TypeCreate, rpc.Create{Spec: spec}, &created)
	if errors.Is(err, errTruncated) {
		rerr := c.link.remove(context.WithoutCancel(ctx), created.ID)
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return nil, fmt.Errorf("creating box: %w", err)
	}
	b, err := newBox(c, spec, created, files)
	if err != nil {
		rerr := c.link.remove(context.WithoutCancel(ctx), created.ID)
		return nil, errors.Join(fmt.Errorf("creating box: %w", err), rerr)
	}
	for _, limit := range created.Degraded {
		c.log.Warn("limit is not enforced", "box", b.id, "limit", limit)
	}
	if !c.adopt(b) || ctx.Err() != nil {
		err := b.Remove(context.WithoutCancel(ctx))
		return nil, errors.Join(context.Cause(ctx), err, c.closedError())
	}
	b.warm.start()
	return b, nil
}

// adopt takes on a box, unless the engine is closed.
func (c *core) adopt(b *box) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.boxes[b] = struct{}{}
	for kind, count := range c.early[b.id] {
		b.events.send(engine.Event{Kind: kind, Count: count})
	}
	delete(c.early, b.id)
	return true
}

func (c *core) findLocked(id string) *box {
	for b := range c.boxes {
		if b.id == id {
			return b
		}
	}
	return nil
}

// event passes an event of the launcher to its box. The first events happened while the
// launcher had no client, and arrive before their boxes are adopted.
func (c *core) event(e rpc.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.findLocked(e.Box); b != nil {
		b.events.send(engine.Event{Kind: e.Kind, Count: e.Count})
		return
	}
	if c.early == nil || len(c.early) == maxEarly {
		c.early = map[string]map[engine.EventKind]int64{}
	}
	if c.early[e.Box] == nil {
		c.early[e.Box] = map[engine.EventKind]int64{}
	}
	c.early[e.Box][e.Kind] = e.Count
}

func (c *core) closedError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return os.ErrClosed
	}
	return nil
}

func (c *core) forget(b *box) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.boxes, b)
	delete(c.early, b.id)
}

// forgetEvents drops the events of a box that was removed without being adopted.
func (c *core) forgetEvents(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.early, id)
}

// shut refuses further boxes and returns the existing ones. first is false if it was called
// before.
func (c *core) shut() (boxes []*box, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	c.closed = true
	return slices.Collect(maps.Keys(c.boxes)), true
}

// Pool implements engine.Pooled.
func (c *core) Pool(ctx context.Context) (s engine.PoolState, err error) {
	if _, err = c.link.call(ctx, rpc.TypePool, struct{}{}, &s); err != nil {
		err = fmt.Errorf("looking at the pool: %w", err)
	}
	return s, err
}
