package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/boxd/boxd/bench/plan"
	"github.com/boxd/boxd/engine"
	"github.com/spf13/cobra"
)

const benchName = "boxd-bench"

func (a *App) newBench() *cobra.Command {
	var p plan.Plan
	var init string
	cmd := &cobra.Command{
		Use:   "bench [flags]",
		Short: "Measure what isolation costs on this host",
		Long: `Measure what boxes cost on this host, and what each part of a box costs, beside bare
fork+exec and beside other programs that isolate commands, if they are installed. Samples of
all of them are taken in turn, so a noisy host affects them alike: compare ratios.

The table has medians with the interval that covers 95 % of them. --json prints all samples.
docs/benchmarks.md explains each row. Must be run as root; the boxes are removed again.`,
		Example: `  sudo boxd bench
  sudo boxd bench --only exec,create --json >before.json
  boxd bench compare before.json after.json`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) (err error) {
			if p.Init, err = a.initPath(init); err != nil && !p.List {
				return err
			}
			if p.Boxd, err = os.Executable(); err != nil {
				return err
			}
			programs := a.programs()
			p.Runc = programs.OCI.Runtime
			p.Runsc = cmp.Or(p.Runsc, programs.OCI.GVisor)
			p.Containerd = cmp.Or(p.Containerd, programs.Containerd.Address)
			p.Command = append([]string{"boxd"}, os.Args[1:]...)
			return a.bench(&p)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&p.List, "list", false, "print the names of the sections and exit")
	fs.StringSliceVar(&p.Only, "only", nil, "measure these `SECTIONS` alone, separated by commas")
	fs.BoolVar(&p.Full, "full", false, "also the sections that need hundreds of boxes or sessions")
	fs.IntVarP(&p.Samples, "samples", "n", 400, "`NUMBER` of samples of a short row; longer rows take a fraction")
	fs.BoolVar(&p.JSON, "json", false, "print JSON with all samples instead of a table")
	fs.StringVar(&p.HTML, "html", "", "also write a page with plots to `FILE`; it needs no other file")
	fs.StringVar(&p.Pictures, "pictures", "", "also write the plots as SVG to the directory `DIR`")
	fs.BoolVar(&p.AllowDegraded, "allow-degraded", false, "go on where this host cannot enforce the default limits")
	fs.StringVar(&p.Containerd, "containerd", "", "measure the containerd at this `SOCKET` (default: $BOXD_CONTAINERD_ADDRESS, or the host's)")
	fs.StringVar(&p.Runsc, "gvisor", "", "measure the runsc at this `PATH` (default: $BOXD_OCI_GVISOR, or the host's)")
	fs.StringVar(&init, "init", "", "`PATH` of boxd-init (default: beside boxd, or where packages install it)")
	cmd.AddCommand(a.newBenchCompare())
	return cmd
}

func (a *App) newBenchCompare() *cobra.Command {
	var p plan.Plan
	var threshold float64
	cmd := &cobra.Command{
		Use:   "compare [flags] BEFORE.json AFTER.json",
		Short: "Compare two reports of boxd bench --json",
		Long: `Compare two reports row by row: by ratios to bare where there are any, so that the reports
may come from different hosts. The exit status is 1 if a row is worse by more than the
threshold and the 95 % interval of the change excludes no change, or if it failed.`,
		Example: `  boxd bench compare before.json after.json --threshold 10`,
		Args:    exactly("BEFORE.json", "AFTER.json"),
		RunE: func(_ *cobra.Command, args []string) error {
			if threshold < 0 {
				return &engine.FieldError{Field: "--threshold", Value: "is negative", Rule: "must be a percentage from 0"}
			}
			p.Compare, p.Threshold = args, threshold/100
			return a.bench(&p)
		},
	}
	cmd.Flags().Float64Var(&threshold, "threshold", 5, "`PERCENT` by which a row may be worse")
	return cmd
}

// bench runs boxd-bench.
func (a *App) bench(p *plan.Plan) error {
	path, err := find(benchName, "install it with the other programs of boxd (make build-bench)")
	if err != nil {
		return err
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, string(text))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, a.Stdout, a.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	// boxd waits, so that whoever interrupts it finds everything removed when it has ended.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may have ended
		}
	}()
	err = cmd.Wait()
	signal.Stop(signals)
	close(signals)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return &statusError{exit.ExitCode(), nil} // it has said why
	}
	return err
}
