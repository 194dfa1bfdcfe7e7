package cli

import (
	"context"
	"errors"
	"strings"

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
}

func (a *App) newStart() *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start SESSION --id PROCESS [flags] -- CMD [ARG...]",
		Short: "Start a managed process in a session",
		Long: `Start a managed process in a session. The session is created if it does not exist.

The process keeps running when boxd start ends, when connections are lost and when the
daemon restarts. The last part of its output is kept: 1 MiB of each stream, or as much
as --history says. If no client reads it, the process waits when that is full; with
--drop-oldest the oldest output is dropped instead. boxd attach connects to the process,
boxd logs shows its output, and boxd stop ends it.`,
		Example: `  boxd start lab --id server -- python3 -m http.server
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
	f.specFlags.register(a, cmd, &f.remoteFlags)
	f.remoteFlags.register(cmd)
	completeFlag(cmd, "id")
	completeFlag(cmd, "history", "64K", "1M", "16M")
	completeFlag(cmd, "process-memory", "64M", "512M", "1G")
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
	return a.remote(&f.remoteFlags, func(ctx context.Context, c *client.Client) error {
		return f.inSession(func(spec *apitypes.SessionSpec) error {
			request.Session = spec
			p, err := c.Start(ctx, names[0], request)
			if err == nil && f.json {
				err = writeJSON(a.Stdout, p)
			}
			return err
		})
	})
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
