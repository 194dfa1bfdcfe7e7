package bench

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/boxd/boxd/engine"
)

// pythonProgram is a small program that imports a module of the standard library.
var pythonProgram = []string{"python3", "-c", "import json; json.dumps({'a': [1, 2]})"}

// spareTime is how long a box may take to have a spare.
const spareTime = 30 * time.Second

// warmPython measures a Python program in a box that keeps the interpreter warm, beside the same program in the
// same box without that, and on the host.
func (b *bench) warmPython(ctx context.Context) {
	const what = "python3 -c 'import json; …' in a live box"
	const host = "/usr/bin/python3" // that of the box, not one of /usr/local with settings of its own
	if _, err := os.Stat(host); err != nil {
		b.skip("zygote.python", what, "there is no "+host)
		return
	}
	spec := b.spec()
	spec.Zygotes = []engine.Zygote{{Name: "python", Command: pythonProgram[:1], Preload: []string{"json"}}}
	b.firstPython(ctx, spec)
	box, err := b.engine.Create(ctx, spec)
	if err != nil {
		b.fail("zygote.python", err)
		return
	}
	defer box.Remove(ctx)
	warm := func() (time.Duration, error) {
		for end := time.Now().Add(spareTime); time.Now().Before(end); {
			begin := time.Now()
			r, err := engine.Run(ctx, box, engine.Command{Args: pythonProgram, Zygote: "python"})
			took := time.Since(begin)
			if err = exitedZero(r, err); err != nil || r.Warm {
				return took, err
			}
		}
		return 0, errors.New("no spare of the interpreter has taken the program over")
	}
	s, err := b.alternate(max(b.n/2, 5), timed(bare), warm,
		timed(func() error { return exitedZero(engine.Run(ctx, box, engine.Command{Args: pythonProgram})) }),
		timed(func() error { return exec.Command(host, pythonProgram[1:]...).Run() }))
	if err != nil {
		b.fail("zygote.python", err)
		return
	}
	b.times("zygote.python", what+", kept warm", s[1], s[0], "", goal{"≤ 3 × bare", s[1].p50() <= 3*s[0].p50()})
	b.times("zygote.none", what+", started", s[2], s[0], "", goal{})
	b.times("zygote.host", "… on the host", s[3], s[0], "", goal{})
}

// firstPython measures the program as the first command of a box of the pool, which comes with its zygote.
func (b *bench) firstPython(ctx context.Context, spec engine.Spec) {
	var made series
	s, err := b.firstOfPool(ctx, spec, &made, func(ctx context.Context, box engine.Box) error {
		r, err := engine.Run(ctx, box, engine.Command{Args: pythonProgram, Zygote: "python"})
		if err = exitedZero(r, err); err == nil && !r.Warm {
			err = errors.New("no spare of the interpreter has taken the program over")
		}
		return err
	})
	if err != nil {
		b.fail("zygote.pool", err)
		return
	}
	b.times("zygote.pool", "create a box from the pool, to the exit of python3 -c 'import json; …' in it", s[1], s[0], "", goal{})
	b.runPython(ctx, spec.Zygotes[0])
}

// runPython measures boxd run of the program by a daemon, in boxes of the pool that come with the interpreter.
func (b *bench) runPython(ctx context.Context, z engine.Zygote) {
	const name, what = "zygote.run", "whole process: boxd run -- python3 -c 'import json; …' by a daemon, from the pool"
	z.Match = true
	profiles, err := json.Marshal(map[string]any{"pool": 1, "profiles": map[string]any{"run": map[string]any{"zygotes": []engine.Zygote{z}}}})
	if err != nil {
		b.fail(name, err)
		return
	}
	config := filepath.Join(b.scratch, "zygotes.yaml") // JSON is YAML
	if err := errors.Join(os.WriteFile(config, profiles, 0o644), os.Setenv("BOXD_CONFIG", config)); err != nil {
		b.fail(name, err)
		return
	}
	defer os.Unsetenv("BOXD_CONFIG")
	b.withDaemon(func(d *served) error {
		p := &peer{args: append([]string{b.boxd, "run", "--socket", d.Socket(), "--"}, pythonProgram...)}
		for range 2 { // so that such boxes are in demand
			if err := p.once(); err != nil {
				return err
			}
		}
		s, err := b.alternate(max(b.n/10, 5), timed(bare), func() (time.Duration, error) { return d.fromPool(ctx, p.once) })
		if err != nil {
			return err
		}
		row := b.times(name, what, s[1], s[0], "", goal{})
		row.Args = append([]string{"boxd", "run", "--socket", "DIR/state/boxd.sock", "--"}, pythonProgram...)
		return nil
	})
}
