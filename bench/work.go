package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/bench/workload"
	"github.com/boxd/boxd/engine"
)

// program is a workload of programs that the host may have: it runs in a box and on the host.
type program struct {
	name, what string
	args       []string
}

// The scripts compute for some 0.1 s, in an interpreter that starts first.
var programsInside = []program{
	{"compile", "cc -O1 of a file with 200 functions", []string{"sh", "-c", `i=0; while [ $i -lt 200 ]; do echo "int f$i(int a,int b){int s=0;for(int i=0;i<a;i++)s+=i*b%(i+1);return s;}"; i=$((i+1)); done | cc -O1 -x c -c -o /tmp/boxd-bench.o - && rm /tmp/boxd-bench.o`}},
	{"python", "Python: json and sorting", []string{"python3", "-c", `import json
for _ in range(20): sorted(json.loads(json.dumps([{"n": i*7919 % 1000, "s": str(i)} for i in range(2000)])), key=lambda r: r["n"])`}},
	{"node", "Node: JSON and sorting", []string{"node", "-e", `for (let k = 0; k < 20; k++) JSON.parse(JSON.stringify(Array.from({length: 2000}, (_, i) => ({n: i*7919 % 1000, s: String(i)})))).sort((a, b) => a.n - b.n)`}},
}

const (
	workDir    = "/mnt/bench"     // of this program, in the box
	outsideDir = "/mnt/workspace" // a directory of the host, in the box
)

// insides measures what a box costs the programs in it.
func (b *bench) insides(ctx context.Context) {
	if err := b.inside(ctx); err != nil {
		b.fail(b.current, err)
	}
}

func (b *bench) inside(ctx context.Context) (err error) {
	dir := b.mountDir()
	shared, tools := filepath.Join(dir, "shared"), filepath.Join(dir, "tools")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := errors.Join(os.MkdirAll(shared, 0o755), os.MkdirAll(tools, 0o755)); err != nil {
		return err
	}
	content, err := os.ReadFile(b.self)
	if err != nil {
		return err
	}
	name := filepath.Join(tools, "boxd-bench")
	if err := os.WriteFile(name, content, 0o755); err != nil {
		return err
	}
	// Enough for all, so that no row measures a limit.
	spec := b.spec()
	spec.Limits.Memory, spec.Limits.CPUs, spec.TmpSize = 1<<30, 64, 256<<20
	spec.Mounts = []engine.Mount{{Source: tools, Target: workDir, ReadOnly: true}, {Source: shared, Target: outsideDir}}
	box, err := b.engine.Create(ctx, spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Remove(context.WithoutCancel(ctx))) }()
	for _, w := range workload.All {
		if !w.Files {
			if err := b.work(ctx, box, "inside."+w.Name, w.What, w, name, "", ""); err != nil {
				return err
			}
			continue
		}
		for _, at := range []struct{ name, what, box, host string }{
			{"tmp", "in /tmp (bare: on a tmpfs)", "/tmp", b.scratch},
			{"mount", "in a mounted directory", outsideDir, shared},
		} {
			if err := b.work(ctx, box, "inside."+w.Name+"-"+at.name, w.What+" "+at.what, w, name, at.box, at.host); err != nil {
				return err
			}
		}
	}
	for _, p := range programsInside {
		row := "inside." + p.name
		// The same program on both sides: a host may have another one in /usr/local, with settings of its own.
		args := append([]string{"/usr/bin/" + p.args[0]}, p.args[1:]...)
		if _, err := os.Stat(args[0]); err != nil {
			b.skip(row, p.what, "not installed in /usr/bin")
			continue
		}
		outside := func() *exec.Cmd {
			cmd := exec.CommandContext(ctx, args[0], args[1:]...)
			cmd.Env, cmd.Dir = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8"}, "/"
			return cmd
		}
		if out, err := outside().CombinedOutput(); err != nil {
			b.skip(row, p.what, fmt.Sprintf("does not run here: %v: %.100q", err, out))
			continue
		}
		s, err := b.alternate(max(b.n/40, 5),
			timed(func() error { return outside().Run() }),
			timed(func() error { return exitedZero(engine.Run(ctx, box, engine.Command{Args: args})) }))
		if err != nil {
			return fmt.Errorf("%s: %w", row, err)
		}
		b.times(row, p.what, s[1], s[0], "the same outside", goal{})
	}
	return nil
}

// work adds the row of a workload.
func (b *bench) work(ctx context.Context, box engine.Box, row, what string, w workload.Workload, program, boxDir, hostDir string) error {
	var here, there []float64
	figure := func(into *[]float64, out []byte, err error) (time.Duration, error) {
		v, perr := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
		if err = errors.Join(err, perr); err != nil {
			return 0, fmt.Errorf("%s: %w: %.200q", row, err, out)
		}
		*into = append(*into, v)
		return 0, nil
	}
	args := func(program, dir string) []string {
		if w.Files {
			return []string{program, "inside", w.Name, dir}
		}
		return []string{program, "inside", w.Name}
	}
	outside := args(program, hostDir)
	n := max(b.n/40, 5)
	_, err := b.alternate(n,
		func() (time.Duration, error) {
			out, err := exec.CommandContext(ctx, outside[0], outside[1:]...).CombinedOutput()
			return figure(&here, out, err)
		},
		func() (time.Duration, error) {
			var out bytes.Buffer
			err := exitedZero(engine.Run(ctx, box, engine.Command{Args: args(workDir+"/boxd-bench", boxDir), Stdout: &out, Stderr: &out}))
			return figure(&there, out.Bytes(), err)
		})
	if err != nil {
		return err
	}
	unit := report.Nanoseconds
	if w.Rate {
		unit = report.BytesPerSecond
	}
	// Without the samples that warmed up.
	b.add(report.Row{Name: row, What: what, Unit: unit, Samples: there[len(there)-n:], BareSamples: here[len(here)-n:], Bare: "the same outside"}, goal{})
	return nil
}
