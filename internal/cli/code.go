package cli

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

// maxCode bounds the code and the files that boxd code reads and sends in its request, in
// bytes. Daemons accept 1 MiB unless they are configured otherwise.
const maxCode = 8 << 20

type codeFlags struct {
	remoteFlags
	commandFlags
	specFlags
	outputFlags
	language       string
	with           []string
	timeout, grace time.Duration
	outputLimit    int64
	interactive    bool
	receipt        bool
	explain        bool
}

func (a *App) newCode() *cobra.Command {
	var f codeFlags
	cmd := &cobra.Command{
		Use:   "code SESSION FILE [flags] [-- ARG...]",
		Short: "Run a file of source code in a session",
		Long: `Run a file of source code in a session of the daemon. The session is created if it does
not exist.

The code and the files of --with are copied into a directory of their own in the box, and
removed afterwards. The program starts in the workspace, where its files stay.

The languages are those of the session's profile: the profiles of a new daemon have
python, javascript and bash. The ending of FILE chooses one, or --language. With - as
FILE the code comes from stdin, and --language is needed.

--outputs copies the files that the program has made or changed, and that match, to the
host: below the current directory, or --outputs-to.

Exit status and verdict are those of boxd exec.`,
		Example: `  boxd code lab train.py
  boxd code lab report.py --with helper.py --with data.csv -- --year 2026
  boxd code lab plot.py --outputs '*.png'
  echo 'console.log(6 * 7)' | boxd code lab --language javascript -`,
		Args: exactly("SESSION", "FILE", "[ARG]..."),
		RunE: func(cmd *cobra.Command, args []string) error { return a.code(&f, args[0], args[1], args[2:]) },

		ValidArgsFunction: a.completeNames(&f.remoteFlags, listSessions),
	}
	fs := cmd.Flags()
	fs.StringVar(&f.language, "language", "", "`NAME` of the language (default: by the ending of FILE)")
	fs.StringArrayVar(&f.with, "with", nil, "put a copy of `FILE` beside the code (repeatable)")
	f.registerPlace(cmd, "the workspace", "the session's")
	fs.BoolVarP(&f.interactive, "interactive", "i", false, "pass boxd's stdin to the program, read to its end first (default: /dev/null)")
	fs.Var(durationValue(&f.timeout, ""), "timeout", "end the program after `DURATION` such as 30s (default: the session's)")
	fs.Var(durationValue(&f.grace, engine.DefaultGrace.String()), "grace", "time between SIGTERM and SIGKILL after a timeout: `DURATION`")
	fs.Var(sizeValue(&f.outputLimit, "", false), "output-limit", "kill the program after this many bytes of stdout or stderr; with --json, cut them: `SIZE`")
	fs.BoolVar(&f.receipt, "receipt", false, "print what the program used on stderr")
	fs.BoolVar(&f.explain, "explain", false, "print on stderr what was refused to the session while the program ran")
	f.outputFlags.register(cmd)
	f.specFlags.register(a, cmd, &f.remoteFlags)
	f.remoteFlags.register(cmd)
	must(cmd.RegisterFlagCompletionFunc("language", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.askNames(&f.remoteFlags, listLanguages, nil), cobra.ShellCompDirectiveNoFileComp
	}))
	completeFiles(cmd, "with")
	completeFlag(cmd, "timeout", "10s", "30s", "2m")
	completeFlag(cmd, "grace", "500ms", "2s", "10s")
	completeFlag(cmd, "output-limit", "1M", "16M")
	return cmd
}

func (a *App) code(f *codeFlags, session, file string, args []string) error {
	if err := f.outputFlags.check(); err != nil {
		return a.fail(f.json, err)
	}
	request, err := a.codeRequest(f, file, args)
	if err != nil {
		return a.fail(f.json, err)
	}
	var result *apitypes.ExecResult
	var unsaved error
	err = a.remote(&f.remoteFlags, func(ctx context.Context, c *client.Client) error {
		return f.inSession(func(spec *apitypes.SessionSpec) (err error) {
			request.Session = spec
			if f.json {
				result, err = c.Code(ctx, session, request)
			} else {
				result, err = c.CodeStream(ctx, session, request, a.Stdout, a.Stderr)
			}
			if err == nil {
				unsaved = a.saveOutputs(ctx, c, session, f.workdir, &f.outputFlags, result)
			}
			return err
		})
	})
	if client.IsCode(err, apitypes.CodeBodyTooLarge) {
		return a.fail(f.json, codeTooLong("are longer than this daemon accepts"))
	}
	if err != nil {
		return a.fail(f.json, err)
	}
	if err := a.execResult(result, f.json, f.receipt, f.explain); err != nil {
		return err // the program's own status comes first
	}
	return unsaved
}

// codeRequest reads the code in file, "-" for stdin, and the files of the flags.
func (a *App) codeRequest(f *codeFlags, file string, args []string) (apitypes.CodeRequest, error) {
	r := apitypes.CodeRequest{
		Language: f.language, Args: args, Cwd: f.workdir, Mkdir: f.mkdir, User: f.user,
		Timeout: apitypes.Duration(f.timeout), Grace: apitypes.Duration(f.grace), OutputLimit: apitypes.Size(f.outputLimit),
		Outputs: f.outputs,
	}
	left := int64(maxCode)
	read := func(in io.Reader) ([]byte, error) {
		b, err := io.ReadAll(io.LimitReader(in, left+1))
		if left -= int64(len(b)); left < 0 {
			return nil, codeTooLong("are longer than " + spec.FormatSize(maxCode))
		}
		return b, err
	}
	open := func(name string) ([]byte, error) {
		in, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		return read(in)
	}
	var code []byte
	var err error
	switch {
	case file != "-":
		r.File = filepath.Base(file)
		code, err = open(file)
	case f.interactive:
		err = &engine.FieldError{Field: "--interactive", Value: "with -", Rule: "cannot be used together: stdin is the code, or the input of the program"}
	case f.language == "":
		err = &engine.FieldError{Field: "--language", Value: `""`, Rule: "must be given, because code from stdin has no name with an ending"}
	default:
		code, err = read(a.Stdin)
	}
	if err != nil {
		return r, err
	}
	if !utf8.Valid(code) {
		return r, &engine.FieldError{Field: "FILE", Value: spec.Quote(file), Rule: "must be source code in UTF-8"}
	}
	r.Code = string(code)
	for _, name := range f.with {
		content, err := open(name)
		if err != nil {
			return r, err
		}
		r.Files = append(r.Files, apitypes.CodeFile{Path: filepath.Base(name), ContentBase64: content})
	}
	if f.interactive {
		if r.StdinBase64, err = read(a.Stdin); err != nil {
			return r, err
		}
	}
	r.Env, err = a.environ(&f.commandFlags)
	return r, err
}

func codeTooLong(value string) error {
	return &engine.FieldError{Field: "code, files and stdin", Value: value, Rule: "copy files with boxd cp and name their paths in the box, or raise http.max_body of the daemon"}
}
