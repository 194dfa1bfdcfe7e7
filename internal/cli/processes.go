package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/spf13/cobra"
)

func (a *App) newPs() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "ps [SESSION] [flags]",
		Short: "List managed processes, of one session or of all",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				list, err := processes(ctx, c, args)
				if err != nil {
					return err
				}
				if f.json {
					return writeJSON(a.Stdout, apitypes.ProcessList{Processes: orEmpty(list)})
				}
				return writeProcesses(a.Stdout, list, time.Now())
			})
		},
		ValidArgsFunction: a.completeNames(&f, completeSession),
	}
	f.register(cmd)
	return cmd
}

// processes are those of the one session in args, or of all if there is none.
func processes(ctx context.Context, c *client.Client, args []string) ([]apitypes.Process, error) {
	if len(args) == 1 {
		return c.Processes(ctx, args[0])
	}
	sessions, err := c.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	var all []apitypes.Process
	for _, s := range sessions {
		list, err := c.Processes(ctx, s.ID)
		if client.IsCode(err, apitypes.CodeSessionNotFound) {
			continue // it ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

func writeProcesses(w io.Writer, list []apitypes.Process, now time.Time) error {
	t := newTable(w, "SESSION", "PROCESS", "STATE", "EXIT", "AGE", "OUTPUT", "COMMAND")
	for _, p := range list {
		t.row(p.Session, p.ID, p.State, exitText(p), ago(now, p.StartedAt), outputText(p), strings.Join(p.Argv, " "))
	}
	return t.flush()
}

// exitText is how p ended, if it has.
func exitText(p apitypes.Process) string {
	switch {
	case p.ExitCode != nil:
		return fmt.Sprint(*p.ExitCode)
	case p.Signal != "":
		return p.Signal
	}
	return p.Verdict
}

// outputText is how much p has written, "" if that is not known any more.
func outputText(p apitypes.Process) string {
	var n int64
	if p.Stdout == nil && p.Stderr == nil {
		return ""
	}
	for _, s := range []*apitypes.Stream{p.Stdout, p.Stderr} {
		if s != nil {
			n += s.End
		}
	}
	return engine.FormatSize(n)
}

type startFlags struct {
	remoteFlags
	commandFlags
	specFlags
	id         string
	tty        bool
	history    int64
	dropOldest bool
}

func (a *App) newStart() *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start SESSION --id PROCESS [flags] -- CMD [ARG...]",
		Short: "Start a managed process in a session",
		Long: `Start a managed process in a session, and make the session if there is none.

It goes on when boxd start ends, when connections are lost and when the daemon is
started again. The last part of its output is kept, 1 MiB of each stream unless
--history says otherwise. If nobody reads, it waits when that is full; with
--drop-oldest it goes on. boxd attach talks to it, boxd logs shows its output, boxd
stop ends it.`,
		Example: `  boxd start lab --id server -- python3 -m http.server
  boxd start lab --id shell -t -- bash
  boxd attach lab shell`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return a.start(cmd, &f, args) },

		ValidArgsFunction: a.completeNames(&f.remoteFlags, completeSession),
	}
	cmd.Flags().StringVar(&f.id, "id", "", "id of the process, once in its session: `PROCESS`")
	f.commandFlags.register(cmd)
	cmd.Flags().BoolVarP(&f.tty, "tty", "t", false, "give the process a terminal")
	cmd.Flags().Var(sizeValue(&f.history, "1M", false), "history", "output that is kept, of each stream: `SIZE`")
	cmd.Flags().BoolVar(&f.dropOldest, "drop-oldest", false, "drop output that nobody read instead of making the process wait")
	f.specFlags.register(cmd)
	f.remoteFlags.register(cmd)
	must(cmd.RegisterFlagCompletionFunc("id", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("history", cobra.FixedCompletions([]string{"64K", "1M", "16M"}, cobra.ShellCompDirectiveNoFileComp)))
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
	request := apitypes.ProcessRequest{
		ID: f.id, Cwd: f.workdir, Mkdir: f.mkdir, User: f.user,
		History: apitypes.Size(f.history), DropOldest: f.dropOldest,
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
	err = a.remote(&f.remoteFlags, func(ctx context.Context, c *client.Client) error {
		return f.inSession(func(spec *apitypes.SessionSpec) error {
			request.Session = spec
			p, err := c.Start(ctx, names[0], request)
			if err == nil && f.json {
				err = writeJSON(a.Stdout, p)
			}
			return err
		})
	})
	switch {
	case client.IsCode(err, apitypes.CodeProgramNotFound):
		return &statusError{statusNotFound, err}
	case client.IsCode(err, apitypes.CodeProgramNotExecutable):
		return &statusError{statusNotExecutable, err}
	}
	return err
}

// giveTerminal gives r a terminal like the one boxd runs at.
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

func (a *App) newStop() *cobra.Command {
	var f remoteFlags
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "stop SESSION PROCESS [flags]",
		Short: "End a managed process",
		Long: `End a managed process: its stdin is closed, it gets SIGTERM, and after a grace all
that is left of it and its descendants is killed. Its output stays to be read.`,
		Args: exactly("SESSION", "PROCESS"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				var r apitypes.StopRequest
				if grace > 0 {
					r.Grace = (*apitypes.Duration)(&grace)
				}
				p, err := c.Stop(ctx, args[0], args[1], r)
				if err == nil && f.json {
					err = writeJSON(a.Stdout, p)
				}
				return err
			})
		},
		ValidArgsFunction: a.completeNames(&f, completeSession, completeProcess),
	}
	cmd.Flags().Var(durationValue(&grace, ""), "grace", "time between SIGTERM and SIGKILL: `DURATION` (default: the daemon's)")
	f.register(cmd)
	completeTimes(cmd.Flags(), cmd)
	return cmd
}
