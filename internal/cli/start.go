package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/spf13/cobra"
)

type startFlags struct {
	remoteFlags
	commandFlags
	specFlags
	id         string
	tty        bool
	history    int64
	dropOldest bool
	dropStderr bool
	memory     int64
	labels     spec.Labels
	restart    string
	wait       bool

	ready                    spec.Ready
	readyCommand             string
	readyTimeout, readyEvery time.Duration
}

func (a *App) newStart() *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start SESSION --id PROCESS [flags] [-- CMD [ARG...]]",
		Short: "Start a managed process in a session",
		Long: `Start a managed process in a session. The session is created if it does not exist.
Without CMD, the process is the command of the session's image.

The process keeps running when boxd start ends, when connections are lost and when the
daemon restarts. The last part of its output is kept: 1 MiB of each stream, or as much
as --history says. If no client reads it, the process waits when that is full; with
--drop-oldest the oldest output is dropped instead. boxd attach connects to the process,
boxd logs shows its output, and boxd stop ends it.

One of the --ready flags says how to find out that the process does its work. Until then it
is "starting"; a process that is not ready within --ready-timeout is ended. --wait returns
when it is ready, and shows its last output if it has failed. --live-every repeats the probe.
--restart on-failure starts a process again that fails, after a pause that grows from 1 s to
1 m. boxd inspect says why it has failed.`,
		Example: `  boxd start lab --id server -- python3 -m http.server
  boxd start lab --id api --ready-http 8080/health --live-every 10s --restart on-failure --wait -- ./api
  boxd start lab --id shell -t -- bash
  boxd attach lab shell`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return a.start(cmd, &f, args) },

		ValidArgsFunction: a.completeNames(&f.remoteFlags, listSessions),
	}
	cmd.Flags().StringVar(&f.id, "id", "", "ID of the process, unique in its session: `PROCESS`")
	f.commandFlags.register(cmd, "the workspace", "the session's")
	cmd.Flags().BoolVarP(&f.tty, "tty", "t", false, "give the process a terminal")
	cmd.Flags().Var(sizeValue(&f.history, "1M", false), "history", "how much output of each stream to keep: `SIZE`")
	cmd.Flags().BoolVar(&f.dropOldest, "drop-oldest", false, "drop unread output instead of making the process wait")
	cmd.Flags().BoolVar(&f.dropStderr, "drop-stderr", false, "drop unread stderr; stdout still makes the process wait")
	cmd.Flags().Var(sizeValue(&f.memory, "", false), "process-memory", "memory limit of this process and its descendants, in addition to the session's: `SIZE`")
	cmd.Flags().Var(labelsValue{"--process-label", &f.labels}, "process-label", "give the process the label `KEY=VALUE` (repeatable)")
	cmd.Flags().StringVar(&f.ready.Line, "ready-line", "", "ready when a line of its output contains `TEXT`")
	cmd.Flags().IntVar(&f.ready.Port, "ready-port", 0, "ready when something in the box listens on TCP `PORT`")
	cmd.Flags().StringVar(&f.ready.HTTP, "ready-http", "", "ready when an HTTP GET in the box is answered by 200 to 399: `PORT/PATH`")
	cmd.Flags().StringVar(&f.readyCommand, "ready-command", "", "ready when this `LINE` for sh exits with 0 in the box")
	cmd.Flags().Var(durationValue(&f.readyTimeout, spec.DefaultReadyTimeout.String()), "ready-timeout", "end a process that is not ready after `DURATION`")
	cmd.Flags().Var(durationValue(&f.readyEvery, ""), "live-every", "repeat the probe of a ready process every `DURATION` (default: never)")
	cmd.Flags().StringVar(&f.restart, "restart", "no", "start it again when it fails: `POLICY` on-failure, on-failure:N for at most N times in a row (5), or no")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "return when the process is ready")
	f.specFlags.register(a, cmd, &f.remoteFlags)
	f.remoteFlags.register(cmd)
	completeFlag(cmd, "id")
	completeFlag(cmd, "history", "64K", "1M", "16M")
	completeFlag(cmd, "process-memory", "64M", "512M", "1G")
	completeFlag(cmd, "ready-line")
	completeFlag(cmd, "ready-port", "80", "8000", "8080")
	completeFlag(cmd, "ready-http", "80/", "8080/health")
	completeFlag(cmd, "ready-command")
	completeFlag(cmd, "ready-timeout", "10s", "1m", "5m")
	completeFlag(cmd, "live-every", "10s", "1m")
	completeFlag(cmd, "restart", "on-failure", "on-failure:10", "no")
	return cmd
}

func (a *App) start(cmd *cobra.Command, f *startFlags, args []string) error {
	names, command, err := afterDash(cmd, args, "SESSION")
	if err != nil {
		return err
	}
	if f.id == "" {
		return usageError(cmd, "--id PROCESS is missing: a name to find the process again")
	}
	if bad, ok := errors.AsType[*engine.FieldError](policy.ValidateProcessID(f.id)); ok {
		return &engine.FieldError{Field: "--id", Value: bad.Value, Rule: bad.Rule}
	}
	request := apitypes.ProcessRequest{
		ID: f.id, Cwd: f.workdir, Mkdir: f.mkdir, User: f.user,
		History: apitypes.Size(f.history), DropOldest: f.dropOldest, DropStderr: f.dropStderr, Memory: apitypes.Size(f.memory), Labels: f.labels,
	}
	if request.Argv, err = f.argv(command); err != nil {
		return err
	}
	if request.Env, err = a.environ(&f.commandFlags); err != nil {
		return err
	}
	if f.tty {
		a.giveTerminal(&request)
	}
	if request.Ready, err = f.readiness(cmd); err != nil {
		return err
	}
	request.Wait = f.wait
	if f.restart != "no" {
		request.Restart = f.restart
	}
	return a.remote(&f.remoteFlags, func(ctx context.Context, c *client.Client) error {
		return f.inSession(func(spec *apitypes.SessionSpec) error {
			request.Session = spec
			p, err := c.Start(ctx, names[0], request)
			if failed, ok := errors.AsType[*client.Error](err); ok && failed.Output != "" {
				fmt.Fprintln(a.Stderr, printableLines(strings.TrimRight(failed.Output, "\n")))
			}
			if err != nil {
				return err
			}
			if err := a.sayPublished(ctx, c, names[0], f.wishes.Publish); err != nil {
				return err
			}
			if f.json {
				return writeJSON(a.Stdout, p)
			}
			return nil
		})
	})
}

// sayPublished names the ports of the host that the daemon chose for wishes, on stderr as boxd run does.
func (a *App) sayPublished(ctx context.Context, c *client.Client, session string, wishes []spec.PublishWish) error {
	if !slices.ContainsFunc(wishes, func(w spec.PublishWish) bool { return w.Host == 0 }) {
		return nil
	}
	s, err := c.Session(ctx, session)
	if err != nil {
		return err
	}
	for _, p := range s.Published {
		if slices.Contains(wishes, spec.PublishWish{Port: p.Port}) {
			a.say("boxd: %s leads to port %d of the box", publishedText(p), p.Port)
		}
	}
	return nil
}

// readiness returns what the flags say about it, nil if they say nothing.
func (f *startFlags) readiness(cmd *cobra.Command) (*spec.Ready, error) {
	var probes []string
	for _, flag := range []string{"ready-line", "ready-port", "ready-http", "ready-command"} {
		if cmd.Flags().Changed(flag) {
			probes = append(probes, "--"+flag)
		}
	}
	if len(probes) > 1 {
		return nil, &engine.FieldError{Field: probes[1], Value: "with " + probes[0], Rule: "cannot be used together: a process has one probe"}
	}
	if len(probes) == 0 {
		for _, flag := range []string{"ready-timeout", "live-every", "wait"} {
			if cmd.Flags().Changed(flag) {
				return nil, usageError(cmd, "--"+flag+" needs --ready-line, --ready-port, --ready-http or --ready-command")
			}
		}
		return nil, nil
	}
	if f.ready.Port == 0 && f.ready.Line+f.ready.HTTP+f.readyCommand == "" {
		return nil, &engine.FieldError{Field: probes[0], Value: spec.Quote(cmd.Flags().Lookup(probes[0][2:]).Value.String()), Rule: "must not be empty or 0: say what to wait for"}
	}
	r := f.ready
	if cmd.Flags().Changed("ready-command") {
		r.Command = []string{"/bin/sh", "-c", f.readyCommand}
	}
	r.Timeout, r.LiveEvery = spec.Duration(f.readyTimeout), spec.Duration(f.readyEvery)
	return &r, nil
}

// giveTerminal gives r a terminal like the one that boxd runs at.
func (a *App) giveTerminal(r *apitypes.ProcessRequest) {
	term := a.openTerminal()
	size := term.size()
	r.TTY = &apitypes.WindowSize{Rows: size.Rows, Cols: size.Cols}
	if r.Env == nil {
		r.Env = map[string]string{}
	}
	if _, given := r.Env["TERM"]; !given {
		_, r.Env["TERM"], _ = strings.Cut(term.addTERM(nil, a.LookupEnv)[0], "=")
	}
}
