package cli

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/choose"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/internal/oneshot"
	"github.com/boxd/boxd/internal/sigwatch"
	"github.com/boxd/boxd/session/imageuser"
	"github.com/spf13/cobra"
)

func (a *App) newRun() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- [CMD [ARG...]]",
		Short: "Run one command in a new box, then remove the box",
		Long: `Run one command in a new box, then remove the box.

The box has the host's system directories read-only, no network but loopback unless
--network proxy gives it one, no capabilities, and limits on memory, processes and processor time. The command is run
without a shell; --shell runs a line of shell instead.

If a daemon runs on this host and the user may use its socket, it runs the command, which is
faster and needs no root. It does so only if the result is the same. These need a launcher of
boxd run itself, and root: --image, --network, --publish, --mount, --workspace, --tty,
--isolation gvisor, another engine, what the daemon's profile "run" does not allow, and what
its quotas refuse. --direct uses no daemon. With --socket the daemon there runs the command,
or boxd run fails. --explain says who has run it.

With --image the box has the root file system of an image of this host instead, see boxd
image. The image supplies the environment, the working directory and the user that no flag
sets, and its own command if there is no CMD. CMD replaces the image's entry point, too.

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
  boxd run --image python:3.12 -- python3 -c 'print(6 * 7)'
  boxd run --publish 8080:8000 -- python3 -m http.server 8000 --bind 127.0.0.1
  generate | boxd run -i --json -- sort`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error { return a.run(&f, args) },

		DisableFlagsInUseLine: true,
	}
	f.register(cmd)
	return cmd
}

// removeTimeout bounds the clean-up. What is left after that, the next boxd run removes.
const removeTimeout = 30 * time.Second

// run is boxd run.
func (a *App) run(f *runFlags, args []string) error {
	r, err := a.request(f, args)
	if err == nil && f.tty && f.interactive && asTerminal(a.Stdin) == nil {
		err = &engine.FieldError{Field: "--tty", Value: "with --interactive", Rule: "stdin is not a terminal: leave out -t, or run it at a terminal"}
	}
	if err != nil {
		return a.fail(f.json, err)
	}
	out := output{app: a, json: f.json, receipt: f.receipt}
	out.attach(&r.cmd, f.tty)
	signals := a.watchSignals()
	stop := sync.OnceFunc(signals.Stop)
	defer stop() // if execute panics
	result, denied, err := a.runSomewhere(r, f, signals)
	for _, d := range denied {
		out.denied = append(out.denied, apitypes.Denial(d))
	}
	stop() // now, so that a signal ends boxd while a reader of the result stalls
	sig := signals.Received()
	if sig != 0 && err != nil {
		err = stoppedBy(sig)
	}
	if err != nil {
		return a.fail(f.json, err)
	}
	if f.explain {
		a.explain(out.denied, "allow it with --allow ADDR:PORT")
	}
	return out.ended(result, oneshot.Status(string(result.Verdict), result.Status(), sig))
}

// execute builds a box, runs the command in it and removes the box in any case. A clean-up that
// fails is reported on stderr; the result stays the same.
func (a *App) execute(r request, f *runFlags, signals *sigwatch.Watch) (result engine.Result, denied []egress.Denial, err error) {
	ctx := signals.Context
	r.options.OneBox = true
	eng, err := a.NewEngine(ctx, r.options)
	if err != nil {
		return result, nil, err
	}
	defer func() {
		if err := eng.Close(); err != nil {
			a.say("boxd: closing engine: %s", oneline.Error(err))
		}
	}()
	if r.userName != "" {
		if r.spec.User, err = a.lookUpUser(ctx, eng, &r); err != nil {
			return result, nil, fmt.Errorf("--image %s: %w", spec.Quote(f.image), err)
		}
	}
	box, _, err := choose.New[engine.Box](eng).Create(ctx, r.spec, r.engines)
	if err != nil {
		return result, nil, f.nameFlag(err)
	}
	defer a.removeBox(box)
	shut, err := a.openNetwork(ctx, box, f)
	if err != nil {
		return result, nil, err
	}
	defer func() { denied = shut() }()
	unpublish, err := a.publish(ctx, box, f.publish)
	if err != nil {
		return result, nil, err
	}
	defer unpublish()
	cmd := r.cmd
	if f.network != spec.None {
		cmd.Env = egress.Environ(cmd.Env, cmp.Or(r.spec.Hostname, spec.DefaultHostname))
	}
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
				return result, nil, err
			}
			defer term.restore()
		}
	}
	signals.Start()
	p, err := box.Start(ctx, cmd)
	if err != nil {
		return result, nil, f.nameFlag(err)
	}
	signals.ForwardTo(p.Signal)
	if term != nil {
		defer term.follow(p.Resize)()
	}
	result, err = p.Wait()
	return result, nil, err
}

func (a *App) removeBox(box engine.Box) {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	if err := box.Remove(ctx); err != nil {
		a.say("boxd: removing box: %s", oneline.Error(err))
	}
}

// lookUpUser finds the user of the request's image in a box with nothing but the image.
func (a *App) lookUpUser(ctx context.Context, eng engine.Engine, r *request) (engine.User, error) {
	wanted := imageuser.Spec(r.spec.Image, r.spec.Layers)
	wanted.AllowDegraded = r.spec.AllowDegraded
	box, err := eng.Create(ctx, wanted)
	if err != nil {
		return engine.User{}, fmt.Errorf("creating a box to look up its user: %w", err)
	}
	defer a.removeBox(box)
	return imageuser.Find(ctx, box, r.userName)
}
