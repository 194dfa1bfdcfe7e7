package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// contender is an engine with an isolation.
type contender struct {
	engine.EngineState
	made, left series // creates alone, removals
	box        engine.Box
}

func (c *contender) name() string {
	name := c.Engine + ", " + c.Isolation
	if c.Runtime != "" {
		name += " (" + c.Runtime + ")"
	}
	return name
}

// row is the name of a row of c, such as "engine.oci.exec" or "engine.native-gvisor.exec".
func (c *contender) row(what string) string {
	name := c.Engine
	if c.Isolation != spec.IsolationNamespaces {
		name += "-" + c.Isolation
	}
	return "engine." + name + "." + what
}

// engines compares the engines of this host: samples of all of them are taken in turn, beside bare
// fork+exec.
func (b *bench) engines(ctx context.Context) {
	states, err := b.engine.Engines(ctx, "", "")
	if err != nil {
		b.fail(b.current, err)
		return
	}
	var all []*contender
	for _, s := range states {
		c := &contender{EngineState: s}
		if s.Available() {
			all = append(all, c)
		} else {
			b.skip(c.row("create"), c.name(), s.Reason)
		}
	}
	if err := b.compare(ctx, all); err != nil {
		b.fail(b.current, err)
	}
}

// compare adds the rows of engines that are available.
func (b *bench) compare(ctx context.Context, all []*contender) (err error) {
	create, run := []sample{timed(bare)}, []sample{timed(bare)}
	for _, c := range all {
		create = append(create, b.life(ctx, c))
		spec := b.spec()
		spec.Engine, spec.Isolation = c.Engine, c.Isolation
		if c.box, err = b.engine.Create(ctx, spec); err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		defer func() { err = errors.Join(err, c.box.Remove(ctx)) }()
		run = append(run, timed(func() error { return execTrue(ctx, c.box) }))
	}
	created, err := b.alternate(max(b.n/8, 5), create...)
	if err != nil {
		return err
	}
	ran, err := b.alternate(b.n, run...)
	if err != nil {
		return err
	}
	for i, c := range all {
		n := len(created[i+1])
		b.times(c.row("create"), c.name()+": create a box, to the first exit", created[i+1], created[0], "", goal{})
		b.times(c.row("create-alone"), "… create a box, alone", c.made[len(c.made)-n:], created[0], "", goal{})
		b.times(c.row("remove"), "… remove a box", c.left[len(c.left)-n:], created[0], "", goal{})
		b.times(c.row("exec"), "… run a command in an existing box", ran[i+1], ran[0], "", goal{})
		idle, err := b.idleOf(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: memory of idle boxes: %w", c.name(), err)
		}
		b.value(c.row("memory"), fmt.Sprintf("… private memory of an idle box, of %d, with all processes that stay for it", enginesIdle), report.Bytes, float64(idle), 0, "", goal{})
	}
	return nil
}

// life is a box from its creation to its first exit. Its removal is timed as well.
func (b *bench) life(ctx context.Context, c *contender) sample {
	spec := b.spec()
	spec.Engine, spec.Isolation = c.Engine, c.Isolation
	return func() (time.Duration, error) {
		begin := time.Now()
		box, err := b.engine.Create(ctx, spec)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", c.name(), err)
		}
		c.made = append(c.made, time.Since(begin))
		err = execTrue(ctx, box)
		exit := time.Since(begin)
		err = errors.Join(err, box.Remove(ctx))
		c.left = append(c.left, time.Since(begin)-exit)
		return exit, err
	}
}

// enginesIdle is how many idle boxes are measured.
const enginesIdle = 10

// idleOf returns the private memory in bytes of an idle box: of its own processes, of those that its
// runtime keeps for it, such as a shim, and what the launcher and this process grew by.
func (b *bench) idleOf(ctx context.Context, c *contender) (each int64, err error) {
	own := append([]int{os.Getpid()}, children(os.Getpid())...)
	debug.FreeOSMemory()
	before, err := privateOf(own)
	if err != nil {
		return 0, err
	}
	spec := b.spec()
	spec.Engine, spec.Isolation = c.Engine, c.Isolation
	var boxes []engine.Box
	defer func() { removeAll(ctx, boxes) }()
	for range enginesIdle {
		box, err := b.engine.Create(ctx, spec)
		if err != nil {
			return 0, err
		}
		boxes = append(boxes, box)
		if err := execTrue(ctx, box); err != nil {
			return 0, err
		}
	}
	debug.FreeOSMemory()
	after, err := privateOf(own)
	if err != nil {
		return 0, err
	}
	for _, box := range boxes {
		bytes, err := privateOf(slices.DeleteFunc(processesOf(box.ID()), func(pid int) bool { return slices.Contains(own, pid) }))
		if err != nil {
			return 0, err
		}
		after += bytes
	}
	return (after - before) / enginesIdle, nil
}

func privateOf(pids []int) (sum int64, err error) {
	for _, pid := range pids {
		n, err := private(pid)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// processesOf lists the processes that are in a cgroup of a box, or have its ID in their command line.
func processesOf(id string) (pids []int) {
	paths, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range paths {
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup")) // it may be gone meanwhile
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if strings.Contains(string(groups), "."+id) || bytes.Contains(args, []byte(id)) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}
