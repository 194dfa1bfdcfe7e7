package cli

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/spf13/cobra"
)

func (a *App) newRun() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- CMD [ARG...]",
		Short: "Run one command in a new box, then remove the box",
		Long: `Run one command in a new box, then remove the box.

The box has the host's system directories read-only, no network but loopback, no
capabilities, and limits on memory, processes and processor time. The command is run
without a shell; --shell runs a line of shell instead.

Exit status: that of the command, or
  124    it ran longer than --timeout
  125    boxd itself failed; stderr says why
  126    the program cannot be executed
  127    the program was not found
  128+n  signal n ended it; 137 if a limit was the reason
If a limit ended the command, stderr has a line such as
  verdict: oom (limit 64 MiB)

SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to the command; a second one kills
it.

--json prints one object on stdout after the command has ended: exit_code (null if the
command did not exit by itself), status (the exit status of boxd run), verdict, signal,
limit, stdout, stderr, stdout_truncated, stderr_truncated and receipt; or exit_code,
status and error if it could not be run. Output that is not valid UTF-8 is in
stdout_base64 or stderr_base64 instead. Values that were not measured or do not apply
are omitted.`,
		Example: `  boxd run -- python3 -c 'print(6 * 7)'
  boxd run --memory 64M --pids 32 --timeout 10s --receipt -- ./job
  boxd run --workspace "$PWD" -w /workspace -- make test
  boxd run --shell 'seq 3 | tac'
  boxd run -it -- bash
  generate | boxd run -i --json -- sort`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error { return a.run(&f, args) },

		DisableFlagsInUseLine: true,
	}
	f.register(cmd)
	completeRun(cmd)
	return cmd
}

// run is boxd run.
func (a *App) run(f *runFlags, args []string) error {
	out := a.newOutput(f)
	r, err := a.request(f, args)
	if err == nil && f.tty && f.interactive && asTerminal(a.Stdin) == nil {
		err = &engine.FieldError{Field: "--tty", Value: "with --interactive", Rule: "stdin is not a terminal: leave out -t, or run it at a terminal"}
	}
	if err != nil {
		return out.failed(statusOf(err), err)
	}
	out.attach(&r.cmd, f.tty)
	result, sig, err := a.executeWatched(r, f)
	if sig != 0 && (err != nil || result.Verdict == engine.Canceled) {
		if err != nil {
			return out.failed(128+int(sig), fmt.Errorf("stopped by %s", signalName(sig)))
		}
		return out.ended(result, 128+int(sig))
	}
	if err != nil {
		return out.failed(statusOf(err), err)
	}
	return out.ended(result, result.Status())
}

// executeWatched passes signals on meanwhile and returns the first, 0 if none came.
func (a *App) executeWatched(r request, f *runFlags) (result engine.Result, sig syscall.Signal, err error) {
	signals := a.watchSignals()
	defer func() {
		signals.stop()
		sig = signals.received()
	}()
	result, err = a.execute(r, f, signals)
	return result, 0, err
}

// removeTimeout bounds the clean-up: a boxd run that hangs would be worse than
// leaving the rest to the next one.
const removeTimeout = 30 * time.Second

// execute builds a box, runs the command in it and takes all apart again,
// whatever happens. Clean-up that fails is told on stderr and changes nothing
// about the result.
func (a *App) execute(r request, f *runFlags, signals *signalWatch) (engine.Result, error) {
	ctx := signals.ctx
	eng, err := a.NewEngine(ctx, r.options)
	if err != nil {
		return engine.Result{}, err
	}
	defer func() {
		if err := eng.Close(); err != nil {
			a.say("boxd: closing engine: %s", oneline.Error(err))
		}
	}()
	box, err := eng.Create(ctx, r.spec)
	if err != nil {
		return engine.Result{}, f.nameFlag(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
		defer cancel()
		if err := box.Remove(ctx); err != nil {
			a.say("boxd: removing box: %s", oneline.Error(err))
		}
	}()
	return a.runIn(ctx, box, r.cmd, f, signals)
}

// runIn runs the command in box, with the local terminal lent to it for that
// time if it is to have one.
func (a *App) runIn(ctx context.Context, box engine.Box, cmd engine.Command, f *runFlags, signals *signalWatch) (engine.Result, error) {
	if f.interactive {
		cmd.Stdin = a.Stdin
	}
	var term *terminal
	if f.tty {
		term = a.openTerminal()
		size := term.size()
		cmd.TTY = &size
		cmd.Env = term.addTERM(cmd.Env, a.LookupEnv)
		if f.interactive {
			if err := term.makeRaw(); err != nil {
				return engine.Result{}, err
			}
			defer term.restore()
		}
	}
	signals.start()
	p, err := box.Start(ctx, cmd)
	if err != nil {
		return engine.Result{}, f.nameFlag(err)
	}
	signals.forwardTo(p)
	if term != nil {
		defer term.follow(p)()
	}
	return p.Wait()
}
