package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// maxExecStdin bounds what boxd exec -i hands over, in bytes: it is part of the
// request. More goes through a file or a managed process.
const maxExecStdin = 8 << 20

// commandFlags describe a command in a session. They mean what they mean for boxd
// run.
type commandFlags struct {
	env, envFiles []string
	workdir       string
	mkdir, shell  bool
	user          *engine.User
}

func (f *commandFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVarP(&f.env, "env", "e", nil, "set `KEY=VALUE`, or pass on KEY from the caller's environment (repeatable)")
	fs.StringArrayVar(&f.envFiles, "env-file", nil, "read variables from `FILE`, one KEY=VALUE or KEY a line (repeatable)")
	fs.StringVarP(&f.workdir, "workdir", "w", "", "working directory in the box: `DIR` (default: the workspace)")
	fs.BoolVar(&f.mkdir, "mkdir", false, "make a missing working directory")
	fs.VarP(userValue(&f.user), "user", "u", "user and group in the box: `UID[:GID]`, 0 to 65534; GID is UID if left out (default: the session's)")
	fs.BoolVar(&f.shell, "shell", false, "run the single argument by sh -c")
	must(cmd.RegisterFlagCompletionFunc("env", cobra.NoFileCompletions))
	must(cmd.MarkFlagFilename("env-file"))
	must(cmd.RegisterFlagCompletionFunc("user", cobra.FixedCompletions([]string{"0:0", "1000:1000", "65534:65534"}, cobra.ShellCompDirectiveNoFileComp)))
}

// argv is what to execute.
func (f *commandFlags) argv(args []string) ([]string, error) {
	if !f.shell {
		return args, nil
	}
	if len(args) != 1 {
		return nil, &engine.FieldError{Field: "--shell", Value: fmt.Sprintf("with %d arguments", len(args)), Rule: "takes a single one, the script; quote it"}
	}
	return []string{"sh", "-c", args[0]}, nil
}

// environ is the environment as the API has it.
func (a *App) environ(f *commandFlags) (map[string]string, error) {
	list, err := a.environment(f.envFiles, f.env)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	env := make(map[string]string, len(list))
	for _, kv := range list {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	return env, nil
}

type execFlags struct {
	remoteFlags
	commandFlags
	specFlags
	timeout, grace       time.Duration
	outputLimit          int64
	interactive, receipt bool
	keepBackground       bool
}

func (a *App) newExec() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec SESSION [flags] -- CMD [ARG...]",
		Short: "Run one command in a session of the daemon",
		Long: `Run one command in a session of the daemon, and make the session if there is none.

What commands leave in the session is there for the next one: files, and with
--keep-background processes. A session that exists is used as it is. If flags say
how it should be, one that is otherwise is refused; mounts are changed in place.

Exit status and verdict are those of boxd run: that of the command, 124 after a
timeout, 125 if boxd itself failed, 126 and 127 if the program cannot be executed
or was not found, 128+n after signal n. SIGINT and SIGTERM end the command.

--json prints one object on stdout, after the command has ended; its output is cut
at --output-limit or what the daemon allows.`,
		Example: `  boxd exec build -- make test
  boxd exec build -- cat result
  boxd exec lab --profile network_basic --memory 1G -- python3 train.py
  generate | boxd exec build -i -- sort`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return a.exec(cmd, &f, args) },

		ValidArgsFunction: a.completeNames(&f.remoteFlags, completeSession),
	}
	f.commandFlags.register(cmd)
	fs := cmd.Flags()
	fs.BoolVarP(&f.interactive, "interactive", "i", false, "stdin of the command is that of boxd, read to its end first (default: /dev/null)")
	fs.Var(durationValue(&f.timeout, ""), "timeout", "end the command after `DURATION` such as 30s (default: the session's)")
	fs.Var(durationValue(&f.grace, engine.DefaultGrace.String()), "grace", "time between SIGTERM and SIGKILL at a timeout: `DURATION`")
	fs.Var(sizeValue(&f.outputLimit, "", false), "output-limit", "bytes of stdout or stderr after which the command is ended, or with --json cut: `SIZE`")
	fs.BoolVar(&f.keepBackground, "keep-background", false, "leave processes running that outlive the command")
	fs.BoolVar(&f.receipt, "receipt", false, "print what the command used on stderr")
	f.specFlags.register(cmd)
	f.remoteFlags.register(cmd)
	completeTimes(cmd.Flags(), cmd)
	return cmd
}

func completeTimes(fs *pflag.FlagSet, cmd *cobra.Command) {
	for flag, list := range map[string][]string{"timeout": {"10s", "30s", "2m"}, "grace": {"500ms", "2s", "10s"}, "output-limit": {"1M", "16M"}} {
		if fs.Lookup(flag) != nil {
			must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveKeepOrder)))
		}
	}
}

func (a *App) exec(cmd *cobra.Command, f *execFlags, args []string) error {
	names, command, err := afterDash(cmd, args, "SESSION")
	if err != nil {
		return a.execFailed(f, err)
	}
	request, err := a.execRequest(f, command)
	if err != nil {
		return a.execFailed(f, err)
	}
	var result *apitypes.ExecResult
	err = a.remote(&f.remoteFlags, func(ctx context.Context, c *client.Client) error {
		return f.inSession(func(spec *apitypes.SessionSpec) (err error) {
			request.Session = spec
			if f.json {
				result, err = c.Exec(ctx, names[0], request)
			} else {
				result, err = c.ExecStream(ctx, names[0], request, a.Stdout, a.Stderr)
			}
			return err
		})
	})
	if err != nil {
		return a.execFailed(f, err)
	}
	return a.execEnded(f, result)
}

func (a *App) execRequest(f *execFlags, command []string) (apitypes.ExecRequest, error) {
	r := apitypes.ExecRequest{
		Cwd: f.workdir, Mkdir: f.mkdir, User: f.user, KeepBackground: f.keepBackground,
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
		return r, &engine.FieldError{Field: "stdin", Value: "longer than " + engine.FormatSize(maxExecStdin), Rule: "copy it to a file with boxd cp, or use boxd start and boxd attach"}
	}
	r.StdinBase64 = in
	return r, nil
}

// execFailed reports that there is no result.
func (a *App) execFailed(f *execFlags, err error) error {
	status := statusFailed
	var known *statusError
	switch {
	case errors.As(err, &known):
		status = known.status
	case client.IsCode(err, apitypes.CodeProgramNotFound):
		status = statusNotFound
	case client.IsCode(err, apitypes.CodeProgramNotExecutable):
		status = statusNotExecutable
	}
	if f.json {
		if err := writeJSON(a.Stdout, failure{ExitCode: status, Error: oneLine(bare(err))}); err != nil {
			return err
		}
	}
	return &statusError{status: status, err: bare(err)}
}

// bare is the error inside a statusError.
func bare(err error) error {
	var known *statusError
	if errors.As(err, &known) && known.err != nil {
		return known.err
	}
	return err
}

// execEnded reports a command that ran, as boxd run does.
func (a *App) execEnded(f *execFlags, r *apitypes.ExecResult) error {
	if f.json {
		if err := writeJSON(a.Stdout, r); err != nil {
			return err
		}
	}
	if r.Recreated {
		a.say("boxd: the session's box was lost, this is a new one on the same workspace")
	}
	if r.Verdict != string(engine.Exited) && r.Verdict != string(engine.Signaled) {
		a.say("%s", verdictLine(engine.Result{Verdict: engine.Verdict(r.Verdict), Limit: r.Limit}))
	} else if n := r.Receipt.OOMKills; n != nil && *n > 0 {
		a.say("memory limit reached, kills: %d", *n)
	}
	if f.receipt {
		writeReceipt(a.Stderr, engineReceipt(r.Receipt))
	}
	if r.Status == 0 {
		return nil
	}
	return &statusError{status: r.Status}
}

func engineReceipt(r apitypes.Receipt) engine.Receipt {
	return engine.Receipt{
		Wall: r.Wall.D(), User: (*time.Duration)(r.User), System: (*time.Duration)(r.System), Throttled: (*time.Duration)(r.Throttled),
		MemoryPeak: r.MemoryPeak, PIDsPeak: r.PIDsPeak, StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes,
		IOReadBytes: r.IOReadBytes, IOWriteBytes: r.IOWriteBytes, OOMKills: r.OOMKills, PIDsLimitReached: r.PIDsLimitReached,
	}
}
