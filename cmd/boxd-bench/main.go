// Command boxd-bench measures what isolation costs. "boxd bench" starts it; its argument is a
// plan.Plan as JSON. It starts itself in boxes, with the argument "inside", for what is measured there.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/boxd/boxd/bench"
	"github.com/boxd/boxd/bench/plan"
	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/bench/workload"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/oneline"
)

// errWorse is a regression that has been printed.
var errWorse = errors.New("regression")

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, errWorse):
		os.Exit(plan.StatusRegression)
	case err != nil:
		fmt.Fprintf(os.Stderr, "boxd: bench: %s\n", oneline.Error(err))
		os.Exit(plan.StatusFailed)
	}
}

func run(args []string, out, messages io.Writer) error {
	if len(args) > 0 && args[0] == "inside" {
		return workload.Run(args[1:], out)
	}
	if len(args) != 1 {
		return errors.New("boxd-bench is started by boxd bench")
	}
	var p plan.Plan
	if err := json.Unmarshal([]byte(args[0]), &p); err != nil {
		return fmt.Errorf("the plan: %w", err)
	}
	switch {
	case p.List:
		for _, name := range bench.Sections() {
			fmt.Fprintln(out, name)
		}
		return nil
	case len(p.Compare) == 2:
		return compare(p, out)
	}
	return measure(p, out, messages)
}

func compare(p plan.Plan, out io.Writer) error {
	was, err := report.Read(p.Compare[0])
	if err != nil {
		return err
	}
	is, err := report.Read(p.Compare[1])
	if err != nil {
		return err
	}
	changes := report.Compare(was, is, p.Threshold)
	if len(changes) == 0 {
		return fmt.Errorf("%s and %s have no row in common", p.Compare[0], p.Compare[1])
	}
	report.Print(out, was, is, changes)
	for _, c := range changes {
		if c.Worse {
			return errWorse
		}
	}
	return nil
}

func measure(p plan.Plan, out, messages io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, failed := bench.Run(ctx, bench.Options{
		Samples: p.Samples, Only: p.Only, Full: p.Full, Degraded: p.AllowDegraded,
		Boxd: p.Boxd, Init: p.Init, Self: self,
		Runtimes: native.Runtimes{OCI: p.Runc, GVisor: p.Runsc, ContainerdAddress: p.Containerd},
		Progress: func(section string, n, of int) { fmt.Fprintf(messages, "[%d/%d] %s\n", n, of, section) },
	})
	if r == nil || ctx.Err() != nil {
		return failed
	}
	r.Command = p.Command
	if p.JSON {
		err = r.WriteJSON(out)
	} else {
		r.WriteTable(out)
	}
	if p.HTML != "" {
		err = errors.Join(err, write(p.HTML, r.WriteHTML))
	}
	if p.Pictures != "" {
		err = errors.Join(err, pictures(r, p.Pictures))
	}
	return errors.Join(failed, err)
}

func write(path string, f func(io.Writer) error) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return f(file)
}

// pictures writes each picture to a file of its name.
func pictures(r *report.Report, dir string) error {
	list, err := r.Pictures()
	if err != nil {
		return err
	}
	for _, p := range list {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, p.Name+".svg"), []byte(p.SVG), 0o644))
	}
	return err
}
