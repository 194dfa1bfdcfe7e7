package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
)

const (
	execTarget = 1.3  // times bare
	rateTarget = 1500 // execs per second with four clients, on two CPUs
	clients    = 4
	batch      = 40 // execs of one client in one sample of throughput
)

// bare is a fork and exec on the host, with which everything is compared.
func bare() error { return exec.Command(command).Run() }

// capturedSample times a command in box whose output is captured in memory.
func capturedSample(ctx context.Context, box engine.Box) sample {
	return timed(func() error {
		var out bytes.Buffer
		return exitedZero(engine.Run(ctx, box, engine.Command{Args: []string{command}, Stdout: &out}))
	})
}

func bareCaptured() error {
	cmd := exec.Command(command)
	cmd.Stdout = new(bytes.Buffer)
	return cmd.Run()
}

// warmExec measures commands in an existing box.
func (b *bench) warmExec(ctx context.Context) {
	const what = "exec in a live box"
	box, err := b.engine.Create(ctx, b.spec())
	if err != nil {
		b.table.fail(what, err)
		return
	}
	defer box.Remove(ctx)
	s, err := alternate(b.n, timed(bare), timed(func() error { return execTrue(ctx, box) }),
		timed(bareCaptured), capturedSample(ctx, box))
	if err != nil {
		b.table.fail(what, err)
		return
	}
	b.table.times("bare fork+exec", s[0], s[0], goal{})
	b.table.times(what, s[1], s[0], execGoal(s[1], s[0]))
	b.table.times(what+", stdout captured", s[3], s[2], execGoal(s[3], s[2]))
}

func execGoal(s, bare series) goal {
	return goal{fmt.Sprintf("≤ %.1f × bare", execTarget), ratio(s, bare) <= execTarget}
}

// throughput measures several clients at once.
func (b *bench) throughput(ctx context.Context) {
	what := fmt.Sprintf("execs/s, %d clients", clients)
	boxes, err := b.create(ctx, clients, 1)
	defer removeAll(ctx, boxes)
	if err != nil {
		b.table.fail(what, err)
		return
	}
	s, err := alternate(max(b.n/20, 5),
		together(func(int) error { return bare() }),
		together(func(int) error { return execTrue(ctx, boxes[0]) }),
		together(func(i int) error { return execTrue(ctx, boxes[i]) }))
	if err != nil {
		b.table.fail(what, err)
		return
	}
	b.rate(what+", bare", s[0], s[0], goal{})
	b.rate(what+", one box", s[1], s[0], rateGoal(s[1]))
	b.rate(fmt.Sprintf("%s, %d boxes", what, clients), s[2], s[0], rateGoal(s[2]))
}

// together has all clients do f batch times each.
func together(f func(client int) error) sample {
	return timed(func() error {
		var wg sync.WaitGroup
		errs := make(chan error, clients)
		for i := range clients {
			wg.Go(func() {
				for range batch {
					if err := f(i); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		wg.Wait()
		select {
		case err := <-errs:
			return err
		default:
			return nil
		}
	})
}

func perSecond(d time.Duration) float64 { return clients * batch / d.Seconds() }

func rateGoal(s series) goal {
	return goal{fmt.Sprintf("≥ %d/s", rateTarget), perSecond(s.p50()) >= rateTarget}
}

// rate adds a row of throughput. Its p90 is the rate that 90 % of the samples reach.
func (b *bench) rate(what string, s, bare series, g goal) {
	text := func(d time.Duration) string { return fmt.Sprintf("%.0f/s", perSecond(d)) }
	b.table.text(row{
		what: what, p50: text(s.p50()), p90: text(s.p90()),
		bare: text(bare.p50()), ratio: fmt.Sprintf("%.2f", 1/ratio(s, bare)),
	}, g)
}

// create creates n boxes, up to parallel at once. On failure it returns those that exist.
func (b *bench) create(ctx context.Context, n, parallel int) ([]engine.Box, error) {
	boxes := make([]engine.Box, n)
	err := atOnce(n, parallel, func(i int) (err error) {
		boxes[i], err = b.engine.Create(ctx, b.spec())
		return err
	})
	return slices.DeleteFunc(boxes, func(box engine.Box) bool { return box == nil }), err
}

func removeAll(ctx context.Context, boxes []engine.Box) {
	for _, box := range boxes {
		_ = box.Remove(ctx)
	}
}
