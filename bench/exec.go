package bench

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/engine"
)

const (
	warmTarget       = 1.15 // times bare
	capturedTarget   = 1.2  // times bare
	rateTarget       = 2000 // execs per second with four clients, on two CPUs
	daemonRateTarget = 1500 // … through the daemon
	clients          = 4
	batch            = 40 // execs of one client in one sample of throughput
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
		b.fail("exec", err)
		return
	}
	defer box.Remove(ctx)
	s, err := b.alternate(b.n, timed(bare), timed(func() error { return execTrue(ctx, box) }),
		timed(bareCaptured), capturedSample(ctx, box))
	if err != nil {
		b.fail("exec", err)
		return
	}
	b.times("exec.bare", "bare fork+exec", s[0], s[0], "", goal{})
	b.times("exec.warm", what, s[1], s[0], "", execGoal(s[1], s[0], warmTarget))
	b.times("exec.captured", what+", stdout captured", s[3], s[2], "fork+exec with its output in memory", execGoal(s[3], s[2], capturedTarget))
}

func execGoal(s, bare series, target float64) goal {
	return goal{fmt.Sprintf("≤ %g × bare", target), ratio(s, bare) <= target}
}

// throughput measures several clients at once.
func (b *bench) throughput(ctx context.Context) {
	what := fmt.Sprintf("execs/s, %d clients", clients)
	boxes, err := b.create(ctx, clients, 1)
	defer func() { removeAll(ctx, boxes) }()
	if err != nil {
		b.fail("rate", err)
		return
	}
	// With the default limit, the commands of all clients share one processor; bare has no limit.
	spec := b.spec()
	spec.Limits.CPUs = processors()
	free, err := b.engine.Create(ctx, spec)
	if err != nil {
		b.fail("rate", err)
		return
	}
	boxes = append(boxes, free)
	s, err := b.alternate(max(b.n/20, 5),
		together(clients, func(int) error { return bare() }),
		together(clients, func(int) error { return execTrue(ctx, boxes[0]) }),
		together(clients, func(i int) error { return execTrue(ctx, boxes[i]) }),
		together(clients, func(int) error { return execTrue(ctx, free) }))
	if err != nil {
		b.fail("rate", err)
		return
	}
	b.rate("rate.bare4", what+", bare", s[0], s[0], goal{})
	b.rate("rate.lib4", what+", one box", s[1], s[0], rateGoal(s[1], rateTarget))
	b.rate("rate.lib4-boxes", fmt.Sprintf("%s, %d boxes", what, clients), s[2], s[0], rateGoal(s[2], rateTarget))
	b.rate("rate.lib4-free", what+", one box with all processors", s[3], s[0], rateGoal(s[3], rateTarget))
}

// processors is a limit that lets a box use all processors.
func processors() float64 { return float64(runtime.NumCPU()) }

// together has n clients do f batch times each, all at once.
func together(n int, f func(client int) error) sample {
	return timed(func() error {
		return atOnce(n, n, func(i int) error {
			for range batch {
				if err := f(i); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func perSecond(d time.Duration) float64 { return clients * batch / d.Seconds() }

func rateGoal(s series, target float64) goal {
	return goal{fmt.Sprintf("≥ %.0f/s", target), perSecond(s.p50()) >= target}
}

// rate adds a row of throughput. Its p90 is the rate that 90 % of the samples reach.
func (b *bench) rate(name, what string, s, direct series, g goal) {
	b.rates(name, what, report.PerSecond, clients*batch, s, direct, "", g)
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
