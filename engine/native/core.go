package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// core is what boxes need of the engine, or service, that they belong to.
type core struct {
	link    *link
	log     *slog.Logger
	null    *os.File // /dev/null, for every command that has nothing else
	service bool     // the boxes outlive this process

	mu     sync.Mutex
	boxes  map[*box]struct{}
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
	spec = spec.WithDefaults()
	var created rpc.Created
	files, err := c.link.call(ctx, rpc.TypeCreate, rpc.Create{Spec: spec}, &created)
	if errors.Is(err, errTruncated) {
		_, rerr := c.link.call(context.WithoutCancel(ctx), rpc.TypeRemove, rpc.Box{ID: created.ID}, nil)
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return nil, fmt.Errorf("creating box: %w", err)
	}
	b, err := newBox(c, spec, created, files)
	if err != nil {
		_, rerr := c.link.call(context.WithoutCancel(ctx), rpc.TypeRemove, rpc.Box{ID: created.ID}, nil)
		return nil, errors.Join(fmt.Errorf("creating box: %w", err), rerr)
	}
	for _, limit := range created.Degraded {
		c.log.Warn("limit is not enforced", "box", b.id, "limit", limit)
	}
	if !c.adopt(b) || ctx.Err() != nil {
		err := b.Remove(context.WithoutCancel(ctx))
		return nil, errors.Join(context.Cause(ctx), err, c.closedError())
	}
	return b, nil
}

// adopt takes on a box, unless the engine is closed.
func (c *core) adopt(b *box) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.boxes[b] = struct{}{}
	}
	return !c.closed
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
}

// shut refuses further boxes and returns those that there are; first is false if
// it was shut already.
func (c *core) shut() (boxes []*box, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	c.closed = true
	for b := range c.boxes {
		boxes = append(boxes, b)
	}
	return boxes, true
}
