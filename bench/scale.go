package bench

import (
	"context"
	"fmt"

	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/engine"
)

// scale measures how figures grow with the numbers of clients and of boxes.
func (b *bench) scale(ctx context.Context) {
	if err := b.scaleClients(ctx); err != nil {
		b.fail("scale.clients", err)
	}
	if err := b.scaleBoxes(ctx); err != nil {
		b.fail("scale.boxes", err)
	}
}

// scaleClients runs commands in as many boxes as there are clients.
func (b *bench) scaleClients(ctx context.Context) error {
	numbers := []int{1, 2, 4, 8}
	boxes, err := b.create(ctx, numbers[len(numbers)-1], 1)
	defer removeAll(context.WithoutCancel(ctx), boxes)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		s, err := b.alternate(max(b.n/40, 5), together(n, func(int) error { return bare() }), together(n, func(i int) error { return execTrue(ctx, boxes[i]) }))
		if err != nil {
			return err
		}
		b.rates(fmt.Sprint("scale.clients.", n), fmt.Sprintf("execs/s, %d clients with a box each", n), report.PerSecond, float64(n*batch), s[1], s[0], "", goal{})
	}
	return nil
}

// scaleBoxes makes a box beside others that exist.
func (b *bench) scaleBoxes(ctx context.Context) error {
	var boxes []engine.Box
	defer func() { removeAll(context.WithoutCancel(ctx), boxes) }()
	for _, n := range []int{0, 10, 50, 100, 200} {
		more, err := b.create(ctx, n-len(boxes), 2)
		boxes = append(boxes, more...)
		if err != nil {
			return err
		}
		s, err := b.alternate(max(b.n/16, 5), timed(bare), timed(func() error {
			box, err := b.engine.Create(ctx, b.spec())
			if err != nil {
				return err
			}
			return box.Remove(ctx)
		}))
		if err != nil {
			return err
		}
		b.times(fmt.Sprint("scale.boxes.", n), fmt.Sprintf("create and remove a box beside %d others", n), s[1], s[0], "", goal{})
	}
	return nil
}
