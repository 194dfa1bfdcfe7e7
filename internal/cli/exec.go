package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

// maxExecStdin bounds the stdin that boxd exec -i reads and sends in its request, in bytes. More
// than that takes a file or a managed process.
const maxExecStdin = 8 << 20

type execFlags struct {
	remoteFlags
	commandFlags
	specFlags
	timeout, grace   time.Duration
	outputLimit      int64
	interactive, tty bool
	receipt, explain bool
	keepBackground   bool
	zygote           string
	outputFlags
}

func (a *App) newExec() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec SESSION [flags] [-- CMD [ARG...]]",
		Short: "Run one command in a session",
		Long: `Run one command in a session of the daemon. The session is created if it does not
exist. Without CMD, it is the command of the session's image.

Files that a command leaves in the session are there for the next one, and so are
processes with --keep-background. Flags that describe the session are compared with an
existing one: if it differs, the command is refused; only mounts are changed in place.

Exit status and verdict are those of boxd run: the command's own, 124 after a timeout,
125 if boxd itself failed, 126 and 127 if the program cannot be executed or was not
found, 128+n after signal n. SIGINT and SIGTERM end the command.

--json prints one object on stdout after the command has ended. Its output is cut at
--output-limit, or at the daemon's maximum.

--outputs copies the files that the command has made or changed, and that match, to the
host: below the current directory, or --outputs-to.

With -it the command uses boxd's terminal, and runs until it or boxd ends. With -t
alone it has a terminal, but no input. The first SIGINT or SIGTERM is passed on
to the command, and the second ends it: a shell at a terminal ignores SIGTERM.`,
		Example: `  boxd exec build -- make test
  boxd exec build -- cat result
  boxd exec lab --profile network_basic --memory 1G -- python3 train.py
  boxd exec lab --outputs '*.png' -- python3 plot.py
  generate | boxd exec build -i -- sort
  boxd exec -it lab -- vim notes`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return a.exec(cmd, &f, args) },

		ValidArgsFunction: a.completeNames(&f.remoteFlags, listSessions),
	}
	f.commandFlags.register(cmd, "the workspace", "the session's")
	fs := cmd.Flags()
	fs.BoolVarP(&f.interactive, "interactive", "i", false, "pass boxd's stdin to the command, read to its end first (default: /dev/null)")
	fs.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal; use -it for a shell or an editor, see boxd shell")
	fs.Var(durationValue(&f.timeout, ""), "timeout", "end the command after `DURATION` such as 30s (default: the session's)")
	fs.Var(durationValue(&f.grace, engine.DefaultGrace.String()), "grace", "time between SIGTERM and SIGKILL after a timeout: `DURATION`")
	fs.Var(sizeValue(&f.outputLimit, "", false), "output-limit", "kill the command after this many bytes of stdout or stderr; with --json, cut them: `SIZE`")
	fs.BoolVar(&f.keepBackground, "keep-background", false, "let background processes of the command keep running")
	fs.StringVar(&f.zygote, "zygote", "", "let the warm interpreter `NAME` of the session's profile take the command over")
	f.outputFlags.register(cmd)
	fs.BoolVar(&f.receipt, "receipt", false, "print what the command used on stderr")
	fs.BoolVar(&f.explain, "explain", false, "print on stderr what was refused to the session while the command ran")
	f.specFlags.register(a, cmd, &f.remoteFlags)
	f.remoteFlags.register(cmd)
	completeFlag(cmd, "timeout", "10s", "30s", "2m")
	completeFlag(cmd, "grace", "500ms", "2s", "10s")
	completeFlag(cmd, "output-limit", "1M", "16M")
	return cmd
}

func (a *App) exec(cmd *cobra.Command, f *execFlags, args []string) error {
	names, command, err := afterDash(cmd, args, "SESSION")
	if err != nil {
		return a.fail(f.json, err)
	}
	if f.tty {
		return a.execAtTerminal(cmd, f, names[0], command)
	}
	if err := f.outputFlags.check(); err != nil {
		return a.fail(f.json, err)
	}
	request, err := a.execRequest(f, command)
	if err != nil {
		return a.fail(f.json, err)
	}
	request.Outputs = f.outputs
	var result *apitypes.ExecResult
	var unsaved error
	err = a.remote(&f.remoteFlags, func(ctx context.Context, c *client.Client) error {
		return f.inSession(func(spec *apitypes.SessionSpec) (err error) {
			request.Session = spec
			if f.json {
				result, err = c.Exec(ctx, names[0], request)
			} else {
				result, err = c.ExecStream(ctx, names[0], request, a.Stdout, a.Stderr)
			}
			if err == nil {
				unsaved = a.saveOutputs(ctx, c, names[0], f.workdir, &f.outputFlags, result)
			}
			return err
		})
	})
	if client.IsCode(err, apitypes.CodeBodyTooLarge) && len(request.StdinBase64) > 0 {
		return a.fail(f.json, stdinTooLong(fmt.Sprintf("of %s is longer than this daemon accepts", spec.FormatSize(int64(len(request.StdinBase64))))))
	}
	if err != nil {
		return a.fail(f.json, err)
	}
	if err := a.execResult(result, f.json, f.receipt, f.explain); err != nil {
		return err // the command's own status comes first
	}
	return unsaved
}

// execResult prints how a command of the daemon ended, and returns it as boxd's own end.
func (a *App) execResult(result *apitypes.ExecResult, json, receipt, explain bool) error {
	if json {
		if err := writeJSON(a.Stdout, result); err != nil {
			return err
		}
	}
	if result.Recreated {
		a.say("boxd: the session's box was lost, this is a new one on the same workspace")
	}
	if explain {
		a.explain(result.Denied, "allow it with \"ADDR:PORT\" in network_rules.allow of the profile")
	}
	return a.ended(engineResult(result), receipt, result.Status)
}

func stdinTooLong(value string) error {
	return &engine.FieldError{Field: "stdin", Value: value, Rule: "copy it to a file with boxd cp, or use boxd start and boxd attach"}
}

func (a *App) execRequest(f *execFlags, command []string) (apitypes.ExecRequest, error) {
	r := apitypes.ExecRequest{
		Cwd: f.workdir, Mkdir: f.mkdir, User: f.user, KeepBackground: f.keepBackground, Zygote: f.zygote,
		Timeout: apitypes.Duration(f.timeout), Grace: apitypes.Duration(f.grace), OutputLimit: apitypes.Size(f.outputLimit),
	}
	var err error
	if r.Argv, err = f.argv(command); err != nil {
		return r, err
	}
	if r.Env, err = a.environ(&f.commandFlags); err != nil {
		return r, err
	}
	if !f.interactive {
		return r, nil
	}
	in, err := io.ReadAll(io.LimitReader(a.Stdin, maxExecStdin+1))
	if err != nil {
		return r, fmt.Errorf("reading stdin: %w", err)
	}
	if len(in) > maxExecStdin {
		return r, stdinTooLong("is longer than " + spec.FormatSize(maxExecStdin))
	}
	r.StdinBase64 = in
	return r, nil
}
